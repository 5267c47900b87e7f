// One photo and one tag at a time: yes, no or unsure by a key. The next photos are loaded ahead.

import { get, send, thumbnail } from "./api.js";
import { find, make, patientImage, say } from "./dom.js";
import { who } from "./who.js";

const SIDE = 1280;
const KEYS = { Y: "yes", N: "no", D: "unsure" };
const NEXT = { yes: "no", no: "unsure", unsure: "yes" };
const LEAD = "Y it is right, N it is wrong, D cannot tell, U undo. Stop whenever you like: every answer is kept.";
const ALL = "Which of these does the photo show? Its tags are selected. Select what is missing, and take back what is wrong.";

let question = null;
let shown = {};  // of the listed tags: yes, no or unsure
let ahead = new Map();  // pictures by id
let busy = false;

function picture(id) {
  if (!ahead.has(id)) ahead.set(id, patientImage({ src: thumbnail(id, SIDE), alt: "" }, () => lose(id)));
  return ahead.get(id);
}

// It is asked about again once it can be shown.
function lose(id) {
  ahead.delete(id);
  if (question?.id === id) nextOne();
}

function choice(tag) {
  const button = make("button", { type: "button", class: "button quiet", onclick: () => turn() }, "");
  const mark = () => {
    const word = shown[tag];
    button.textContent = word === "unsure" ? `${tag} ?` : tag;
    button.setAttribute("aria-pressed", String(word === "yes"));
    button.classList.toggle("quiet", word !== "yes");
  };
  const turn = () => { shown[tag] = NEXT[shown[tag]]; mark(); };
  mark();
  return button;
}

function show(state) {
  question = state.question;
  find("progress").textContent = state.statement;
  find("model").textContent = state.progress;
  find("footer").textContent = `labelwise ${state.version} · the answers are in ${state.folder}`;
  find("one-buttons").hidden = !question;
  if (!question) {
    find("ask").textContent = "Nothing is left to ask";
    find("lead").textContent = "Stop the server in the terminal: it writes the results.";
    find("grid").replaceChildren();
    return;
  }
  const whole = question.label === null;
  find("ask").textContent = whole ? "Which of these does it show?" : `Does it show: ${question.label}?`;
  find("lead").textContent = whole ? ALL : LEAD;
  const image = picture(question.id);
  image.alt = question.name;
  shown = Object.fromEntries(question.listed.map((tag) => [tag, question.tagged.includes(tag) ? "yes" : "no"]));
  find("grid").replaceChildren(make("li", { class: "alone" }, image, make("p", { class: "tags" }, ...question.listed.map(choice))));
  for (const name of ["yes", "no", "unsure"]) find(`answer-${name}`).hidden = whole;
  find("answer-all").hidden = !whole;
  const wanted = new Set([question.id, ...state.ahead]);
  ahead = new Map([...ahead].filter(([id]) => wanted.has(id)));
  state.ahead.forEach(picture);
}

async function once(work) {
  if (busy) return;
  busy = true;
  try {
    show(await work());
  } catch (error) {
    say(error.message);
  }
  busy = false;
}

const next = () => get("/question", { who: who() || "me" });
export const nextOne = () => once(next);
const photo = () => ({ photo: question.id, who: who() || "me" });
const answer = (word) => question && question.label !== null
  && once(() => send("PUT", "/answer", { ...photo(), label: question.label, answer: word }));
const answerAll = () => question && question.label === null
  && once(() => send("PUT", "/answer", { ...photo(), shown }));
const undo = () => once(() => send("PUT", "/undo", { who: who() || "me" }));

function pressed(event) {
  if (event.target.closest("input, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toUpperCase();
  if (key in KEYS) answer(KEYS[key]);
  else if (key === "U") undo();
  else if (key === "S") answerAll();
  else return;
  event.preventDefault();
}

export async function startOne(view) {
  document.title = "Audit tags · labelwise";
  for (const name of ["save", "skip-these", "undo", "word"]) find(name).parentElement.hidden = true;
  for (const note of document.querySelectorAll(".keys-help")) note.hidden = true;
  const button = (name, words, action, quiet = "") => make("button", { type: "button", class: `button ${quiet}`, id: `answer-${name}`, onclick: action }, words);
  find("grid").after(make("p", { class: "actions", id: "one-buttons" },
    button("yes", "Yes (Y)", () => answer("yes")), button("no", "No (N)", () => answer("no")),
    button("unsure", "Cannot tell (D)", () => answer("unsure"), "quiet"), button("all", "Save (S)", answerAll),
    button("undo", "Undo (U)", undo, "quiet")));
  find("grid").className = "grid one";
  document.addEventListener("keydown", pressed);
  show({ ...view, question: null });
  await nextOne();
}
