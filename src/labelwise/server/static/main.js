// The page: which view is shown, who serves it, and what is true for all views.

import { get, onTokenWanted } from "./api.js";
import { count, find, make } from "./dom.js";
import * as check from "./check.js";
import * as photo from "./photo.js";
import * as review from "./review.js";
import * as search from "./search.js";
import * as select from "./select.js";
import { askForToken } from "./sign_in.js";
import * as tag from "./tag.js";
import * as trust from "./trust.js";
import { keepName } from "./who.js";

const VIEWS = { tag: () => {}, search: search.open, photo: photo.open, check: check.open, review: review.open, trust: trust.open };
let withPhotos = false;
let first = true;

function reveal(name) {
  const shown = name in VIEWS ? name : "tag";
  for (const view of document.querySelectorAll("section.view")) view.hidden = view.id !== shown;
}

function route() {
  let [name, ...rest] = location.hash.slice(1).split("/");
  if (name === "main") return;
  if (!(name in VIEWS) || (!withPhotos && ["search", "photo", "check", "review"].includes(name))) {
    name = "tag";
  }
  reveal(name);
  for (const link of document.querySelectorAll(".topbar nav a")) {
    const current = link.hash === `#${name}` || (["photo", "check"].includes(name) && link.hash === "#search");
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = find(`${name}-title`);
  document.title = `${title.textContent} · labelwise`;
  if (!first) {
    title.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  first = false;
  let text = "";
  try {
    text = decodeURIComponent(rest.join("/"));
  } catch {
    text = rest.join("/");
  }
  VIEWS[name](text);
}

async function start() {
  let asking = null;
  onTokenWanted(() => { asking ??= askForToken().finally(() => { asking = null; }); return asking; });
  find("skip").addEventListener("click", (event) => { event.preventDefault(); find("main").focus(); });
  reveal(location.hash.slice(1).split("/")[0]);  // a first picture, before the server has told anything
  // Before the server has told of its model, so that nothing a person does first is lost.
  for (const view of [tag, search, select, photo, check, review]) view.start();
  keepName();
  let model;
  try {
    model = await get("/model");
  } catch (error) {
    find("main").prepend(make("p", { class: "failed", role: "alert" }, error.message, " ",
      make("button", { class: "button quiet row-action", onclick: () => location.reload() }, "Try again")));
    return;
  }
  withPhotos = model.photos !== null;
  for (const item of document.querySelectorAll("[data-needs=photos]")) item.hidden = !withPhotos;
  find("model").textContent = `${model.name}: ${count(model.labels)} labels${withPhotos ? `, ${count(model.photos)} photos` : ""}`;
  find("footer").textContent = `labelwise ${model.version} · weights ${model.weights} · calibration ${model.calibration} ·`;
  find("caution").textContent = model.caution ?? "";
  find("caution").hidden = model.caution === null;
  tag.know(model);
  trust.know(model);
  addEventListener("hashchange", route);
  route();
}

start();
