// One question at a time: does this photo carry this label? Three keys answer it.

import { get, send, thumbnail } from "./api.js";
import { chance, find, make, onKeys, patientImage, say } from "./dom.js";
import { signed } from "./who.js";

const ANSWERS = [["present", "Yes, it is there", "Y", ""], ["absent", "No, it is not", "N", "no"], ["unknown", "I cannot tell", "D", "unsure"]];

let queue = [];
let done = [];
let busy = false;

export function start() {
  find("review-by").addEventListener("change", () => { queue = []; load(); });
  find("review-guess").addEventListener("change", show);
  find("review-form").addEventListener("submit", (event) => event.preventDefault());
  const replies = ANSWERS.map(([state, , key]) => [key, () => reply(state)]);
  onKeys("review", { ...Object.fromEntries(replies), U: takeBack });
}

export function open(by) {
  const choice = find("review-by");
  if (by !== choice.value && [...choice.options].some((one) => one.value === by)) {
    choice.value = by;
    queue = [];
  }
  if (queue.length) show();
  else load();
}

async function load() {
  const by = find("review-by").value;
  if (!find("question").children.length) find("question").replaceChildren(make("p", { class: "muted" }, "Choosing the next questions…"));
  try {
    const answer = await get("/review", { by, count: 20 });
    if (by !== find("review-by").value) return;
    queue = answer.questions;
    show();
  } catch (error) {
    find("question").replaceChildren(make("p", { class: "failed", role: "alert" }, error.message, " ",
      make("button", { class: "button quiet row-action", onclick: load }, "Try again")));
  }
}

function show() {
  const place = find("question"), one = queue[0];
  const back = make("button", { class: "button quiet", disabled: !done.length, onclick: takeBack }, "Undo (U)");
  if (!one) {
    place.replaceChildren(make("div", {},
      make("p", { class: "ask" }, done.length ? "That is all for now." : "There is nothing to ask."),
      make("p", { class: "muted" }, "Choose another kind of question above, or look at what your answers say under Trust."), back));
    return;
  }
  const guess = find("review-guess").checked
    ? make("p", {}, `The model says ${chance(one.probability)}, so it is ${one.given ? "given" : "not given"}.`) : null;
  const buttons = ANSWERS.map(([state, word, key, kind]) => make("button", {
    class: `button ${kind}`, onclick: () => reply(state),
  }, word, make("kbd", { "aria-hidden": "true" }, key)));
  place.replaceChildren(
    make("figure", { class: "large" }, patientImage({ src: thumbnail(one.id, 640), alt: `The photo ${one.name}`, width: 640, height: 480 }, () => later(one)),
      make("figcaption", {}, make("a", { href: `#photo/${one.id}` }, one.name))),
    make("div", {},
      make("p", { class: "ask", id: "ask", "aria-live": "polite" }, "Is this label right: ", make("strong", {}, one.label), "?"),
      guess, make("div", { class: "answers" }, ...buttons),
      make("p", {}, back),
      make("p", { class: "muted small" }, `${done.length} answered, ${queue.length} in this round.`)));
  if (queue[1]) new Image().src = thumbnail(queue[1].id, 640);
}

// A photo that cannot be shown now is asked about again at the end of the round.
function later(one) {
  if (queue[0] !== one || queue.length < 2) return;
  queue.push(queue.shift());
  say(`${one.name} cannot be shown now; it is asked about again later.`);
  show();
}

async function reply(state) {
  const one = queue[0];
  if (!one || busy) return;
  busy = true;
  try {
    const photo = await send("PUT", `/photos/${one.id}/labels`, { labels: { [one.label]: state }, source: one.source, ...signed() });
    done.push({ question: one, before: photo.before });
    queue.shift();
    say(`${one.label}: ${{ present: "there", absent: "not there", unknown: "cannot tell" }[state]}`, 2);
    if (queue.length) show();
    else await load();
  } catch (error) {
    say(error.message);
  }
  busy = false;
}

async function takeBack() {
  const last = done.pop();
  if (!last || busy) return;
  busy = true;
  try {
    await send("PUT", `/photos/${last.question.id}/labels`, { labels: last.before, ...signed() });
    queue.unshift(last.question);
    show();
    say("Taken back.", 2);
  } catch (error) {
    done.push(last);
    say(error.message);
  }
  busy = false;
}
