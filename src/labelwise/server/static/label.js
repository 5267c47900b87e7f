// Is this word in these photos? A grid to select in; what is not selected is answered no.

import { get, onTokenWanted, send, thumbnail } from "./api.js";
import { count, find, make, patientImage, say, table } from "./dom.js";
import { nextOne, startOne } from "./one.js";
import { askForToken } from "./sign_in.js";
import { keepName, who } from "./who.js";

const WORDS = { absent: "no", present: "yes", unsure: "cannot tell" };
const NEXT = { absent: "present", present: "unsure", unsure: "absent" };
const KEYS = { Y: "present", N: "absent", D: "unsure" };
const LEAD = {
  false: "Select the photos that show it; select once more if you cannot tell. All others are answered no.",
  true: "The guesses are selected: correct the wrong ones. Photos set aside for guarantees have none, so select those that show it.",
};

let asked = [];  // { photo, state, shown, gone, button }
let askedWord = "";  // that the photos shown are asked about
let loads = 0;  // of which the newest counts
let saved = [];  // batches that can be taken back
let busy = false;

const word = () => find("word").value;

function mark(one, state) {
  one.state = state;
  one.button.dataset.state = state;
  one.button.setAttribute("aria-pressed", String(state === "present"));
  one.button.lastChild.textContent = WORDS[state];
  one.button.setAttribute("aria-label", `${one.photo.name}: ${WORDS[state]}`);
}

// Not selected means no, so nothing is saved before all photos could be seen.
const awaited = () => asked.some((one) => !one.shown && !one.gone);

function allowSaving() {
  find("save").disabled = !asked.length || awaited();
}

function lose(one) {
  one.gone = true;
  one.button.disabled = true;
  one.button.dataset.state = "gone";
  one.button.lastChild.textContent = "cannot be shown now; asked again later";
  allowSaving();
}

function tile(photo, state) {
  const one = { photo, state, shown: false, gone: false };
  const onload = () => { one.shown = true; allowSaving(); };
  const image = patientImage({ src: thumbnail(photo.id), alt: "", width: 320, height: 320, onload }, () => lose(one));
  one.button = make("button", { type: "button", onclick: () => mark(one, NEXT[one.state]) }, image, make("span", {}));
  mark(one, state);
  return one;
}

function show(label, photos) {
  askedWord = label;
  asked = photos.map(({ photo, state }) => tile(photo, state));
  find("grid").replaceChildren(...asked.map((one) => make("li", {}, one.button)));
  find("skip-these").disabled = !asked.length;
  allowSaving();
  find("undo").disabled = !saved.length;
  find("ask").textContent = asked.length ? `Is there: ${label}?` : `Every photo was answered for: ${label}`;
  asked[0]?.button.focus({ preventScroll: true });
}

// Where a person scrolled down to the buttons, the next photos begin above.
async function loadNext(fresh = false) {
  await load(fresh);
  find("ask").scrollIntoView({ block: "nearest" });
}

async function load(fresh = false) {
  const label = word();
  const turn = ++loads;
  const guesses = find("guesses").checked;
  const answer = await get("/questions", { label, who: who(), fresh: fresh || null, guesses: guesses || null });
  if (turn !== loads) return;
  find("lead").textContent = LEAD[guesses];
  show(label, answer.photos.map((photo) => ({ photo, state: photo.guess ? "present" : "absent" })));
  const learnt = answer.learnt_from ? ` The model has learnt from ${count(answer.learnt_from)} answered photos.` : "";
  find("progress").textContent = `${count(answer.left)} photos are not answered for this word.${learnt}`;
}

function tell(view) {
  find("order").textContent = view.order;
  find("guessing").hidden = !view.may_guess;
  find("model").textContent = `${count(view.answered)} of ${count(view.photos)} photos answered`;
  find("footer").textContent = `labelwise ${view.version} · the answers are in ${view.table}`;
  const rows = view.words.map((one) => [one.label, count(one.yes), count(one.no), count(one.unsure), count(one.disagreed)]);
  find("counts").replaceChildren(table("Answers so far", ["word", "yes", "no", "cannot tell", "people disagree"], rows));
}

// One thing at a time; what goes wrong is said, and nothing that was selected is lost.
async function once(work) {
  if (busy) return;
  busy = true;
  try {
    await work();
  } catch (error) {
    say(error.message);
  }
  busy = false;
}

// What may come at any time, because the newest counts.
const reload = () => load().catch((error) => say(error.message));

async function save() {
  if (awaited()) throw new Error("Some photos are still loading: save when you have seen them, or skip these.");
  const here = asked.filter((one) => !one.gone);
  if (!who()) { find("who").focus(); throw new Error("Say who you are first: answers are kept by name."); }
  if (here.length) {
    const states = Object.fromEntries(here.map((one) => [one.photo.id, one.state]));
    const label = askedWord;
    tell(await send("PUT", "/answers", { label, who: who(), states }));
    saved.push({ label, who: who(), photos: here.map(({ photo, state }) => ({ photo, state })) });
    say(`${count(here.length)} answers saved.`, 2);
  }
  await loadNext();
}

async function takeBack() {
  const last = saved[saved.length - 1];
  if (!last) return;
  const states = Object.fromEntries(last.photos.map(({ photo }) => [photo.id, "withdrawn"]));
  tell(await send("PUT", "/answers", { label: last.label, who: last.who, states }));
  saved.pop();
  find("word").value = last.label;
  loads += 1;
  show(last.label, last.photos);
  find("ask").scrollIntoView({ block: "nearest" });
  say("Taken back.", 2);
}

function step(from, by) {
  const at = asked.findIndex((one) => one.button === from);
  asked[Math.min(asked.length - 1, Math.max(0, at + by))]?.button.focus();
}

function pressed(event) {
  if (event.target.closest("input, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toUpperCase();
  const one = asked.find((other) => other.button === document.activeElement);
  if (one && key in KEYS) { mark(one, KEYS[key]); step(one.button, 1); }
  else if (one && event.key === "ArrowRight") step(one.button, 1);
  else if (one && event.key === "ArrowLeft") step(one.button, -1);
  else if (key === "S") once(save);
  else if (key === "K") once(() => loadNext(true));
  else if (key === "U") once(takeBack);
  else return;
  event.preventDefault();
}

async function start() {
  let asking = null;
  onTokenWanted(() => { asking ??= askForToken().finally(() => { asking = null; }); return asking; });
  let renamed = reload;
  keepName(() => { if (who()) renamed(); });
  find("who").value ||= "me";
  const view = await get("/labelling");
  find("choice").addEventListener("submit", (event) => event.preventDefault());
  if (view.one_at_a_time) {
    renamed = nextOne;
    await startOne(view);
    return;
  }
  find("word").replaceChildren(...view.words.map((one) => make("option", { value: one.label }, one.label)));
  tell(view);
  find("word").addEventListener("change", reload);
  find("guesses").addEventListener("change", reload);
  find("save").addEventListener("click", () => once(save));
  find("skip-these").addEventListener("click", () => once(() => loadNext(true)));
  find("undo").addEventListener("click", () => once(takeBack));
  document.addEventListener("keydown", pressed);
  await load();
}

start().catch((error) => say(error.message, 3600));
