// Queries: completion and history, the grid, and what the count says.

import { get, thumbnail } from "./api.js";
import { chance, count, find, make, patientImage } from "./dom.js";
import { box, renew } from "./select.js";

const CHIPS = 24;  // labels that are shown at first
const BADGES = { guarantee: "Guarantee", estimate: "Estimate" };
const LIKE = { alike: "Alike", "shares differ": "Shares differ", "pictures differ": "Pictures differ", unknown: "Not known" };

const FILTERS = ["folder", "since", "until", "camera", "rating", "keyword", "distinct"];
const HISTORY = "labelwise.queries";
const KEPT = 12;

let cursor = null;
let asked = 0;
let last = "";

export function start() {
  const query = find("query"), wrong = find("wrong"), promised = find("promised"), cut = find("cut");
  find("query-form").addEventListener("submit", (event) => {
    event.preventDefault();
    completions.close();
    go();
  });
  wrong.addEventListener("input", () => {
    find("wrong-shown").value = `${wrong.value} % wrong`;
    promised.checked = true;
  });
  cut.addEventListener("input", () => {
    find("cut-shown").value = Number(cut.value) ? `at least ${cut.value} %` : "any";
  });
  for (const control of [wrong, promised, cut, ...["sort", ...FILTERS].map(find)]) {
    control.addEventListener("change", () => { tellFilters(); if (query.value.trim()) run(); });
  }
  find("more").addEventListener("click", () => run(true));
  const completions = new Completions(query, find("completions"), go);
}

function go() {
  const text = find("query").value.trim();
  const target = text ? `#search/${encodeURIComponent(text)}` : "#search";
  if (location.hash === target) run();
  else location.hash = target;
}

export function open(text) {
  find("overview").hidden = Boolean(text);
  if (text && text !== last) {  // coming back from a photo shows the list as it was
    find("query").value = text;
    run();
  } else if (!text) {
    asked += 1;
    last = "";
    for (const name of ["counted", "grid"]) find(name).replaceChildren();
    for (const name of ["check-offer", "more"]) find(name).hidden = true;
    find("query").value = "";
    renew([]);
    overview();
  }
}

// What there is to look for, before anything is asked: labels with their counts, the newest photos.
async function overview() {
  const chips = find("label-chips"), newest = find("newest"), turn = asked;
  if (!newest.children.length) newest.replaceChildren(...waitingTiles());
  try {
    const library = await get("/library");
    if (turn !== asked) return;
    const about = library.counted < library.photos ? "about " : "";
    const all = library.labels.map((one) => make("li", {}, make("a", { class: "chip", href: `#search/${encodeURIComponent(one.label)}` },
      one.label, make("span", { class: "number" }, `${about}${count(one.photos)}`))));
    const more = find("more-labels");
    chips.replaceChildren(...all.slice(0, CHIPS));
    more.hidden = all.length <= CHIPS;
    more.onclick = () => { chips.replaceChildren(...all); more.hidden = true; };
    newest.replaceChildren(...library.newest.map(tile));
    if (!library.newest.length) newest.replaceChildren(make("li", { class: "empty" }, "This library has no photos yet. Index a folder, and open this page again."));
  } catch (error) {
    if (turn !== asked) return;
    chips.replaceChildren();
    newest.replaceChildren(make("li", { class: "failed", role: "alert" }, error.message, " ",
      make("button", { class: "button quiet row-action", onclick: overview }, "Try again")));
  }
}

const waitingTiles = () => Array.from({ length: 12 }, () => make("li", { class: "waiting", "aria-hidden": "true" }));

function tellFilters() {
  const set = ["promised", ...FILTERS].filter(chosen).length + (Number(find("cut").value) ? 1 : 0) + (find("sort").value === "date" ? 1 : 0);
  find("filters-set").textContent = set ? ` (${set} set)` : "";
}

// "a red bicycle", -person: a text in quotation marks, and a query of labels.
const QUOTED = /^\s*"([^"]+)"\s*(?:,\s*(.*))?$/s;

// like:keyword:holiday, like:2023/june: photos like those of an album.
const LIKE_ALBUM = "like:";
const isAlbum = (text) => text.startsWith(LIKE_ALBUM) && text.length > LIKE_ALBUM.length;

// What a filter is set to; empty where it leaves nothing out.
function chosen(name) {
  const field = find(name);
  if (field.type === "checkbox") return field.checked ? "true" : "";
  return field.value.trim();
}

async function look(text, more) {
  const quoted = QUOTED.exec(text);
  const filters = Object.fromEntries(FILTERS.map((name) => [name, chosen(name)]));
  if (quoted || isAlbum(text)) {
    if (Object.values(filters).some(Boolean)) throw new Error("Folder, days and the other filters do not apply to a text in quotation marks or to an album; clear them.");
    if (!quoted) return get("/album-search", { album: text.slice(LIKE_ALBUM.length), top: 50 });
    const q = quoted[2] ?? "";
    return get("/text-search", { text: quoted[1], q, top: 96, at_least: q ? Number(find("cut").value) / 100 || null : null });
  }
  return get("/search", {
    q: text,
    top: 48,
    sort: find("sort").value,
    at_least: Number(find("cut").value) / 100 || null,
    wrong_about: find("promised").checked ? Number(find("wrong").value) / 100 : null,
    ...filters,
    cursor: more ? cursor : null,
  });
}

async function run(more = false) {
  const text = find("query").value.trim(), turn = ++asked;
  if (!text) return;
  last = text;
  const counted = find("counted"), grid = find("grid");
  grid.setAttribute("aria-busy", "true");
  counted.classList.remove("error");
  if (!grid.children.length) counted.replaceChildren(make("p", { class: "muted" }, "Searching…"));
  try {
    const answer = await look(text, more);
    if (turn !== asked) return;
    remember(text);

    cursor = answer.cursor ?? null;
    if (!more) {
      grid.replaceChildren();
      renew(Object.keys(answer.hits[0]?.reasons ?? {}));
    }
    const withheld = answer.statement?.kind === "none";  // no list, because nothing can be said of it
    if (!more && !answer.hits.length && !withheld) {
      grid.append(make("li", { class: "empty" }, "No photo to show. Take a label out of the query, or clear some filters."));
    }
    grid.append(...answer.hits.map((hit) => {
      const item = tile(hit);
      item.append(box(hit));
      return item;
    }));
    counted.classList.remove("error");
    counted.replaceChildren(...words(answer));
    // A check is of a query's list in the whole library.
    const narrowed = QUOTED.test(text) || FILTERS.some(chosen);
    find("check-offer").hidden = narrowed || !(answer.hits.length || (withheld && answer.photos));
    const length = isAlbum(text) ? ",50" : withheld ? `,${Math.min(50, answer.photos, Math.max(10, Math.round(answer.expected ?? 0)))}` : "";
    find("check-link").textContent = withheld ? "Check photos yourself: your answers can guarantee a list" : "Check photos of this list";
    find("check-link").href = `#check/${find("wrong").value}${length}/${encodeURIComponent(text)}`;
  } catch (error) {
    if (turn !== asked) return;
    grid.replaceChildren();

    cursor = null;
    counted.classList.add("error");
    find("check-offer").hidden = true;
    counted.replaceChildren(make("p", { class: "failed" }, error.message));
  }
  grid.removeAttribute("aria-busy");
  find("more").hidden = cursor === null;
}

function textWords(answer) {
  const rest = answer.query === null ? [] : [", among those of ", make("strong", { class: "asked" }, answer.query), ` of at least ${chance(answer.at_least)}`];
  const promise = find("promised").checked ? " Nothing is estimated of it." : "";
  return [make("p", {}, "The photos most like ", make("strong", { class: "asked" }, answer.text), " first", ...rest,
    `. A likeness is not a probability: nobody has answered about this ${isAlbum(last) ? "album" : "text"}.${answer.doubt ? ` ${answer.doubt}.` : ""}${promise}`)];
}

// What the list carries, as the server words it.
const badge = (kind, ...said) => make("p", { class: `badge ${kind}` }, kind in BADGES ? make("span", { class: "kind" }, `${BADGES[kind]} `) : null, make("span", { class: "said" }, ...said));

function words(answer) {
  if ("text" in answer) return textWords(answer);
  let text = answer.low === null ? `; ${answer.untested}.` : ` (${count(Math.floor(answer.low))} to ${count(Math.ceil(answer.high))}).`;
  if (answer.above !== null) text += ` ${count(answer.above)} ${answer.above === 1 ? "is" : "are"} in this list.`;
  if (answer.expected === null) return [make("p", {}, `${count(answer.photos)} photos, those most like `, make("strong", { class: "asked" }, answer.query), ` first; ${answer.untested}.`)];
  const start = `About ${count(Math.round(answer.expected))} of ${count(answer.photos)} ${answer.photos === 1 ? "photo matches" : "photos match"} `;
  const counting = [start, make("strong", { class: "asked" }, answer.query), text];
  const said = answer.statement;
  const parts = said ? [badge(said.kind, said.sentence), make("p", {}, ...counting)]
    : [answer.low === null ? make("p", {}, ...counting) : badge("estimate", ...counting)];
  if (answer.near_copies) parts.push(make("p", { class: "muted small" }, answer.near_copies));
  if (answer.likeness) {
    const { outcome, sentence: told } = answer.likeness;
    parts.push(make("p", { class: "muted small" },
      make("span", { class: outcome === "pictures differ" ? "verdict bad" : "verdict" }, `${LIKE[outcome]}: `), told));
  }
  return parts.filter(Boolean);
}

// Of a photo nobody asked about, its day stands where the probability does.
function number(hit) {
  if (hit.probability !== undefined) return chance(hit.probability);
  if (hit.likeness !== undefined) return `likeness ${hit.likeness.toFixed(2)}`;
  return hit.taken ? hit.taken.slice(0, 10) : "";
}

export function tile(hit) {
  const labels = Object.entries(hit.reasons ?? {}); // by themselves; of a single one the query's probability says it
  const why = labels.length > 1 ? labels.map(([name, p]) => `${name} ${chance(p)}`).join(", ") : "";
  const copies = hit.copies ? ` (and ${hit.copies} more)` : "";
  return make("li", {}, make("a", { href: `#photo/${hit.id}` },
    patientImage({ src: thumbnail(hit.id), alt: "", loading: "lazy", width: 320, height: 320 }),
    make("span", { class: "chance" }, number(hit)),
    why ? make("span", { class: "why" }, why) : null,
    make("span", { class: "file" }, hit.name + copies)));
}

function history() {
  try {
    const kept = JSON.parse(localStorage.getItem(HISTORY) ?? "[]");
    return Array.isArray(kept) ? kept.filter((one) => typeof one === "string") : [];
  } catch {
    return [];
  }
}

function remember(text) {
  try {
    const kept = [text, ...history().filter((one) => one !== text)].slice(0, KEPT);
    localStorage.setItem(HISTORY, JSON.stringify(kept));
  } catch {
    // a browser that keeps nothing
  }
}

class Completions {
  constructor(input, list, chosen) {
    Object.assign(this, { input, list, chosen, at: -1, options: [], turn: 0 });
    input.addEventListener("input", () => this.fill());
    input.addEventListener("focus", () => { if (!input.value) this.fill(); });
    input.addEventListener("blur", () => setTimeout(() => this.close(), 150));
    input.addEventListener("keydown", (event) => this.key(event));
  }

  async fill() {
    const turn = ++this.turn, text = this.input.value;
    const before = history().filter((one) => one.startsWith(text) && one !== text).slice(0, 5);
    let labels = [];
    try {
      if (text) labels = await get("/complete", { q: text });
    } catch {
      // completion is a courtesy; the search itself says what is wrong
    }
    if (turn !== this.turn || document.activeElement !== this.input) return;
    this.options = [...before.map((value) => ({ value, word: "again" })),
      ...labels.filter((one) => one !== text && !before.includes(one)).map((value) => ({ value, word: "" }))].slice(0, 10);
    this.at = -1;
    this.list.replaceChildren(...this.options.map((option, at) => make("li", {
      role: "option", id: `completion-${at}`, "aria-selected": "false",
      onmousedown: (event) => { event.preventDefault(); this.take(at, option.word === "again"); },
    }, option.value, option.word ? make("small", {}, option.word) : null)));
    this.list.hidden = !this.options.length;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.input.removeAttribute("aria-activedescendant");
  }

  key(event) {
    if (event.key === "Escape" && !this.list.hidden) { this.close(); event.preventDefault(); return; }
    if (this.list.hidden) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const n = this.options.length, step = event.key === "ArrowDown" ? 1 : -1;
      this.at = this.at < 0 && step < 0 ? n - 1 : (this.at + step + n) % n;
      [...this.list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === this.at)));
      this.list.children[this.at].scrollIntoView({ block: "nearest" });
      this.input.setAttribute("aria-activedescendant", `completion-${this.at}`);
      event.preventDefault();
    } else if ((event.key === "Enter" || event.key === "Tab") && this.at >= 0) {
      event.preventDefault();
      this.take(this.at, false);
    }
  }

  take(at, search) {
    this.input.value = this.options[at].value;
    this.close();
    this.input.focus();
    if (search) this.chosen();
  }

  close() {
    this.turn += 1;
    this.list.hidden = true;
    this.at = -1;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}

