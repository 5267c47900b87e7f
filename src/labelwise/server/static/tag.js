// Drop photos, get labels. Each is sent with its own progress and card.

import { get, upload } from "./api.js";
import { chance, find, make, meter, patiently, say } from "./dom.js";
import { reliability } from "./trustworthy.js";

const AT_ONCE = 3;
const FEW = 3;  // labels that are shown in any case
const SHOWN = 12;
const waiting = [];
let running = 0;
let facts = { max_body: Infinity, rule: "" };

export async function know(model) {
  facts = model;
  try {
    const models = await get("/models");
    find("choice").replaceChildren(...models.map((one) => make("option", {}, one.name)));
    find("choice-place").hidden = models.length < 2;
  } catch (error) {
    say(error.message, 8);
  }
}

// The path of what is asked of the chosen model; before the server has told of its models, of the first.
const chosen = () => find("choice").value || null;
const pathOf = (model) => (model === null ? "" : `/models/${encodeURIComponent(model)}`);

function tooLarge(file) {
  if (file.size <= facts.max_body) return null;
  const mebibytes = (bytes) => (bytes / 2 ** 20).toFixed(0);
  return `This file has ${mebibytes(file.size)} MiB; the server takes ${mebibytes(facts.max_body)}.`;
}

export function start() {
  const files = find("files");
  files.addEventListener("change", () => { add(files.files); files.value = ""; });
  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
  }
  for (const kind of ["dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      if (kind === "drop" || event.relatedTarget === null) document.body.classList.remove("dropping");
    });
  }
  document.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    location.hash = "#tag";
    add(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) add(event.clipboardData.files);
  });
}

function add(files) {
  for (const file of [...files].reverse()) {
    const card = new Card(file);
    find("cards").prepend(card.element);
    waiting.unshift(card);
  }
  say(files.length === 1 ? "Reading one photo" : `Reading ${files.length} photos`, 2);
  next();
}

async function next() {
  while (running < AT_ONCE && waiting.length) {
    running += 1;
    waiting.shift().run().finally(() => { running -= 1; next(); });
  }
}

class Card {
  constructor(file) {
    this.file = file;
    this.model = chosen();
    this.stopper = new AbortController();
    const address = URL.createObjectURL(file);
    const image = make("img", { src: address, alt: "", width: 120, height: 120 });
    image.addEventListener("load", () => URL.revokeObjectURL(address));
    image.addEventListener("error", () => {
      URL.revokeObjectURL(address);
      image.classList.add("unshown"); // no photo, or of a kind that this browser does not show
    });
    this.progress = make("progress", { max: 1, "aria-label": `Sending ${file.name}` });
    this.stop = make("button", { class: "button quiet row-action", onclick: () => this.stopper.abort() }, "Stop");
    this.answer = make("div", { class: "answer", "aria-busy": "true" },
      make("p", { class: "who" }, file.name), this.progress, this.stop);
    this.element = make("li", { class: "card" }, image, this.answer);
  }

  async run() {
    try {
      const problem = tooLarge(this.file);
      if (problem) throw new Error(problem);
      this.show(await this.sent());
    } catch (error) {
      this.fail(error.message);
    }
    this.answer.removeAttribute("aria-busy");
  }

  sent() {
    return patiently(() => upload(`${pathOf(this.model)}/predict`, this.file, (share) => {
      if (share < 1) this.progress.value = share;
      else this.progress.removeAttribute("value");
    }, this.stopper.signal), this.stopper.signal);
  }

  fail(message) {
    const again = make("button", { class: "button quiet row-action", onclick: () => {
      const card = new Card(this.file);
      this.element.replaceWith(card.element);
      waiting.push(card);
      next();
    } }, "Try again");
    this.answer.replaceChildren(make("p", { class: "who" }, this.file.name),
      make("p", { class: "error", role: "alert" }, message), again);
  }

  show(predicted) {
    const result = predicted.results[0];
    const name = make("p", { class: "who" }, result.name);
    const answer = result.none ? make("p", { class: "none" }, `None of the ${result.labels.length} labels.`) : null;
    const list = bars(result.labels, pathOf(this.model));
    this.answer.replaceChildren(name, ...(answer ? [answer] : []));
    this.element.append(list, make("p", { class: "muted small rule" },
      result.labels.some((one) => one.threshold !== null) ? "A label is given from its mark on. " : `Labels are given by this rule: ${predicted.rule}. `,
      "Choose a label to see how often it was right at this probability."));
    say(result.none ? `${result.name}: none of the labels` : `${result.name}: ${result.decided.join(", ")}`);
  }
}

function bars(labels, path) {
  const list = make("ul", { class: "bars", "aria-label": "Labels" });
  const add = (some) => list.append(...some.map((one) => line(one, path)));
  const first = labels.filter((one, at) => one.decided || at < FEW).slice(0, SHOWN);
  const rest = labels.filter((one) => !first.includes(one));
  add(first);
  if (rest.length) {
    const more = make("button", { class: "more" }, make("span"), make("span", {}, `${rest.length} more ${rest.length === 1 ? "label" : "labels"}`));
    const item = make("li", {}, more);
    more.addEventListener("click", () => { item.remove(); add(rest); });
    list.append(item);
  }
  return list;
}

// One label; on demand, how often it was right at about this probability.
function line(one, path) {
  const told = make("p", { class: "told", hidden: true });
  const button = make("button", { "aria-expanded": "false", title: "How often was it right at this probability?", onclick: async () => {
    const open = told.hidden;
    told.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (!open || told.textContent) return;
    told.textContent = "Looking at held-out photos…";
    try {
      const limit = one.threshold === null ? "" : ` It is given from ${chance(one.threshold)} on.`;
      told.textContent = (await reliability(path, one.label, one.probability)) + limit;
    } catch (error) {
      told.textContent = error.message;
    }
  } },
  make("span", { class: "mark", "aria-hidden": "true" }, one.decided ? "✓" : ""),
  make("span", { class: one.decided ? "of yes" : "of" }, one.label,
    make("span", { class: "unseen" }, one.decided ? ", given" : ", not given")),
  meter(one.probability, one.decided, one.threshold),
  make("span", { class: "share" }, chance(one.probability)));
  return make("li", {}, button, told);
}
