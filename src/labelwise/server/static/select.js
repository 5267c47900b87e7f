// Several photos of a grid at once: select them, then say of all that a label is there or not.

import { get, send } from "./api.js";
import { count, find, make, onKeys, say } from "./dom.js";
import { signed } from "./who.js";

const STATES = { Y: ["present", "is there"], N: ["absent", "is not there"], D: ["unknown", "unsure"] };

const ALBUM = 100;  // photos that say what is sought

const chosen = new Set();
let anchor = null;  // the photo that a range begins at
let undo = [];
let busy = false;

export function start() {
  const grid = find("grid"), label = find("select-label");
  grid.addEventListener("click", (event) => {
    if (event.target.matches("input.pick")) pick(event.target, event.shiftKey);
  });
  for (const [key, [state]] of Object.entries(STATES)) {
    find(`select-${state}`).addEventListener("click", () => correct(key));
  }
  find("select-bar").addEventListener("submit", (event) => event.preventDefault());
  find("select-undo").addEventListener("click", takeBack);
  find("select-none").addEventListener("click", clear);
  find("select-like").addEventListener("click", more);
  label.addEventListener("input", async () => {
    try {
      const names = await get("/complete", { q: label.value });
      find("select-labels").replaceChildren(...names.map((value) => make("option", { value })));
    } catch {
      // completion is a courtesy; the correction itself says what is wrong
    }
  });
  const actions = Object.fromEntries(Object.keys(STATES).map((key) => [key, () => correct(key)]));
  onKeys("search", { ...actions, U: takeBack, M: more, A: all, X: toggleFocused, ESCAPE: clear });
}

// A box beside each photo; its tile is the one that holds it.
export const box = (hit) => make("input", { type: "checkbox", class: "pick", value: hit.id, "aria-label": `Select ${hit.name}` });

// A new list keeps nothing of the one before.
export function renew(labels) {
  chosen.clear();
  undo = [];
  anchor = null;
  find("select-label").value = labels[0] ?? "";
  show();
}

const boxes = () => [...find("grid").querySelectorAll("input.pick")];

function pick(one, range) {
  const every = boxes(), at = every.indexOf(one), from = range ? every.findIndex((other) => other.value === anchor) : -1;
  const some = from < 0 ? [one] : every.slice(Math.min(at, from), Math.max(at, from) + 1);
  for (const other of some) set(other, one.checked);
  anchor = one.value;
  show();
}

function set(one, on) {
  one.checked = on;
  if (on) chosen.add(one.value);
  else chosen.delete(one.value);
}

function toggleFocused() {
  const one = document.activeElement?.closest("#grid > li")?.querySelector("input.pick");
  if (!one) return;
  set(one, !one.checked);
  anchor = one.value;
  show();
}

function all() {
  const every = boxes(), on = every.some((one) => !one.checked);
  for (const one of every) set(one, on);
  show();
}

function clear() {
  for (const one of boxes()) set(one, false);
  show();
}

// The selected photos are an album, whose like is sought.
function more() {
  const ids = [...chosen].slice(0, ALBUM).map((id) => id.slice(0, 16));
  if (ids.length) location.hash = `#search/like:photos:${ids.join(",")}`;
}

function show() {
  find("select-bar").hidden = !chosen.size && !undo.length;
  find("select-count").textContent = `${count(chosen.size)} selected`;
  find("select-like").disabled = !chosen.size;
  find("select-undo").disabled = !undo.length || busy;
  for (const [state] of Object.values(STATES)) find(`select-${state}`).disabled = !chosen.size || busy;
}

async function correct(key) {
  const [state, words] = STATES[key], label = find("select-label").value.trim();
  if (!chosen.size || busy) return;
  if (!label) {
    say("Name the label first.");
    find("select-label").focus();
    return;
  }
  const done = await each([...chosen].map((id) => [id, { [label]: state }]));
  if (done.length) undo.push(done);
  if (done.length) say(`${label} ${words}: ${count(done.length)} ${done.length === 1 ? "photo" : "photos"}. U takes it back.`);
  show();
}

async function takeBack() {
  if (!undo.length || busy) return;
  const last = undo.pop(), done = await each(last);
  if (done.length) say(`Taken back for ${count(done.length)} ${done.length === 1 ? "photo" : "photos"}.`);
  show();
}

// Send corrections one after the other; return what undoes those that were taken.
async function each(corrections) {
  const done = [];
  busy = true;
  show();
  try {
    for (const [id, labels] of corrections) {
      const photo = await send("PUT", `/photos/${id}/labels`, { labels, ...signed() });
      done.push([id, photo.before]);
      find("select-count").textContent = `${count(done.length)} of ${count(corrections.length)} done`;
    }
  } catch (error) {
    say(error.message, 8);
  }
  busy = false;
  return done;
}
