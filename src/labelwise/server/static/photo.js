// One photo: every label in three states, one key each, with undo.

import { get, send, thumbnail } from "./api.js";
import { chance, find, make, say } from "./dom.js";
import { tile } from "./search.js";
import { signed } from "./who.js";

const STATES = [["present", "yes", "y"], ["absent", "no", "n"], ["unknown", "?", "d"]];
const FEW = 12;
const WORDS = { present: "is there", absent: "is not there", unknown: "unsure", withdrawn: "is left to the model" };

let current = null;
let undo = [];
let every = false;

export function start() {
  find("photo-all").addEventListener("click", () => {
    every = true;
    show(current);
    find("photo-labels").lastElementChild.scrollIntoView({ block: "nearest" });
  });
  find("photo-undo").addEventListener("click", takeBack);
  find("photo-labels").addEventListener("keydown", keys);
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, dialog");
    if (find("photo").hidden || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.toLowerCase() === "u") takeBack();
    // From the title, where the view begins, the arrows lead into the list.
    const atTitle = event.target === document.body || event.target === find("photo-title");
    if (atTitle && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      find("photo-labels").querySelector("li[tabindex='0']")?.focus();
    }
  });
}

export async function open(id) {
  if (current?.id !== id) {
    undo = [];
    every = false;
  }
  current = null;
  const image = find("photo-image");
  image.src = thumbnail(id, 1280);
  image.alt = "";
  find("photo-labels").replaceChildren();
  find("photo-similar").replaceChildren();
  find("photo-file").replaceChildren();
  try {
    const photo = await get(`/photos/${id}`);
    show(photo);
    file(id);
    const near = await get(`/photos/${id}/similar`, { count: 12 });
    if (current?.id === id) find("photo-similar").replaceChildren(...near.map(tile));
  } catch (error) {
    find("photo-title").textContent = "Photo";
    find("photo-facts").textContent = error.message;
  }
}

// The file itself: where it lies, its camera, its place on a map, and a copy to keep.
async function file(id) {
  const place = find("photo-file");
  try {
    const { paths, camera, latitude, longitude } = await get(`/photos/${id}/facts`);
    if (current?.id !== id) return;
    const parts = [make("span", { class: "path" }, paths.join(", ")), camera,
      make("a", { href: `/api/v1/photos/${id}/original`, download: "" }, "Download"),
      latitude === null ? null : make("a", { href: `https://www.openstreetmap.org/?mlat=${latitude}&mlon=${longitude}#map=14/${latitude}/${longitude}`, target: "_blank", rel: "noopener noreferrer" }, "Map"),
    ].filter(Boolean);
    place.replaceChildren(...parts.flatMap((one) => [" · ", one]));
  } catch (error) {
    if (current?.id === id) place.textContent = ` · ${error.message}`;
  }
}

function show(photo) {
  current = photo;
  find("photo-title").textContent = photo.name;
  const given = photo.labels.filter((one) => one.decided).map((one) => one.label);
  find("photo-image").alt = given.length ? `${photo.name}: ${given.join(", ")}` : `${photo.name}: none of the labels`;
  const facts = [];
  if (photo.width) facts.push(`${photo.width} × ${photo.height}`);
  if (photo.taken) facts.push(`taken ${photo.taken.replace("T", " ")}`);
  if (photo.copies) facts.push(`${photo.copies} more copies`);
  facts.push(given.length ? `labels: ${given.join(", ")}` : "none of the labels");
  find("photo-facts").textContent = facts.join(" · ");
  const focused = document.activeElement?.closest("#photo-labels > li")?.dataset.label;
  const most = every ? photo.labels.length : Math.max(FEW, given.length + 3);
  const shown = photo.labels.filter((one, at) => at < most || one.corrected);
  find("photo-labels").replaceChildren(...shown.map(line));
  find("photo-all").hidden = shown.length === photo.labels.length;
  find("photo-all").textContent = `Show all ${photo.labels.length} labels`;
  find("photo-undo").disabled = !undo.length;
  if (focused) row(focused)?.focus();
}

const row = (label) => [...find("photo-labels").children].find((item) => item.dataset.label === label);

function line(one, at) {
  const buttons = STATES.map(([state, word, key]) => make("button", {
    class: state, "aria-pressed": String(one.corrected === state), tabindex: -1,
    "aria-label": `${one.label} ${WORDS[state]}`, title: `${WORDS[state]} (${key.toUpperCase()})`,
    onclick: () => correct(one.label, one.corrected === state ? "withdrawn" : state),
  }, word));
  const standing = one.corrected ? `, you said it ${WORDS[one.corrected]}` : one.decided ? ", given" : ", not given";
  const item = make("li", { tabindex: at ? -1 : 0, "aria-label": `${one.label}, ${chance(one.probability)}${standing}` },
    make("span", { class: one.decided ? "of yes" : "of" }, one.label),
    make("span", { class: "share" }, chance(one.probability)),
    make("span", { class: "three", role: "group", "aria-label": one.label }, ...buttons));
  item.dataset.label = one.label;
  return item;
}

function keys(event) {
  const item = event.target.closest("li");
  if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const next = event.key === "ArrowDown" ? item.nextElementSibling : item.previousElementSibling;
    if (next) {
      item.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
    event.preventDefault();
    return;
  }
  const state = STATES.find(([, , key]) => key === event.key.toLowerCase());
  if (state) {
    event.preventDefault();
    correct(item.dataset.label, state[0]);
  }
}

async function correct(label, state) {
  const id = current.id;
  try {
    const photo = await send("PUT", `/photos/${id}/labels`, { labels: { [label]: state }, ...signed() });
    undo.push(photo.before);
    if (current?.id === id) show(photo);
    say(`${label} ${WORDS[state]}. U takes it back.`);
  } catch (error) {
    say(error.message);
  }
}

async function takeBack() {
  if (!undo.length || !current) return;
  const before = undo.pop();
  try {
    show(await send("PUT", `/photos/${current.id}/labels`, { labels: before, ...signed() }));
    say(`Taken back: ${Object.keys(before).join(", ")}.`);
  } catch (error) {
    undo.push(before);
    say(error.message);
  }
}
