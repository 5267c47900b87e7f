// A person checks photos of a list, one at a time, until it can be guaranteed.

import { send, thumbnail } from "./api.js";
import { count, find, make, onKeys, patientImage, say } from "./dom.js";
import { signed } from "./who.js";

const ANSWERS = [["yes", "Yes, it matches", "Y", ""], ["no", "No, it does not", "N", "no"], ["unsure", "I cannot tell", "D", "unsure"]];

let list = null;  // what is checked: query, share that may be wrong, length
let view = null;
let busy = false;

export function start() {
  find("check-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (list) location.hash = hash({ ...list, top: Number(find("check-top").value) || null, percent: Number(find("check-wrong").value) });
  });
  const replies = ANSWERS.map(([answer, , key]) => [key, () => reply(answer)]);
  onKeys("check", { ...Object.fromEntries(replies), U: takeBack });
}

// #check/10/dog or, for the best 50 photos, #check/10,50/dog
const hash = ({ query, percent, top }) => `#check/${percent}${top ? `,${top}` : ""}/${encodeURIComponent(query)}`;

const body = () => ({ q: list.query, wrong_at_most: list.percent / 100, top: list.top, ...signed() });

export function open(text) {
  const [, percent, top, query] = /^([1-9][0-9]?)(?:,([1-9][0-9]{0,6}))?\/(.+)$/s.exec(text) ?? [];
  if (!query) {
    location.hash = "#search";
    return;
  }
  list = { query, percent: Number(percent), top: top ? Number(top) : null };
  find("check-top").value = top ?? "";
  find("check-wrong").value = percent;
  find("check-back").href = `#search/${encodeURIComponent(query)}`;
  ask("/check/list", body());
}

async function ask(path, value) {
  if (busy) return;
  busy = true;
  find("check-body").setAttribute("aria-busy", "true");
  const asked = list;
  try {
    const answer = await send("POST", path, value);
    if (asked === list) show(answer);
  } catch (error) {
    if (asked === list) failed(error);
  }
  busy = false;
  find("check-body").removeAttribute("aria-busy");
  if (asked !== list) await ask("/check/list", body());
}

function failed(error) {
  if (view) say(error.message);
  const state = find("check-state");
  state.classList.add("error");
  state.textContent = error.message;
  find("check-bar").replaceChildren();
  find("check-body").replaceChildren(make("p", {},
    make("button", { class: "button quiet", onclick: () => ask("/check/list", body()) }, "Try again")));
  view = null;
}

const reply = (answer) => view?.question && ask("/check/answer", { checked: body(), photo: view.question.photo.id, answer });
const takeBack = () => view?.checked && ask("/check/undo", body());

function show(answer) {
  view = answer;
  const state = find("check-state");
  state.classList.remove("error");
  state.replaceChildren(make("span", { class: answer.statement ? "verdict good" : null },
    answer.statement?.sentence ?? `${answer.sentence[0].toUpperCase()}${answer.sentence.slice(1)}.`));
  find("check-bar").replaceChildren(...bar(answer));
  const back = make("button", { class: "button quiet", disabled: !answer.checked, onclick: takeBack }, "Undo (U)");
  const shorter = answer.shorter
    ? make("a", { class: "button quiet", href: hash({ ...list, top: answer.shorter }) }, `Check the best ${count(answer.shorter)} instead`) : null;
  const after = make("p", { class: "options" }, back, shorter);
  find("check-body").replaceChildren(answer.question ? question(answer, after) : result(answer, after));
  if (answer.following) new Image().src = thumbnail(answer.following, 640);
}

function bar(answer) {
  if (answer.more === null || answer.statement) return [];
  const most = Math.max(1, answer.checked + answer.more);
  return [make("progress", { max: most, value: answer.checked, "aria-label": "Photos checked, of about as many as it takes" })];
}

function question(answer, after) {
  const one = answer.question.photo;
  const buttons = ANSWERS.map(([word, text, key, kind]) => make("button", {
    class: `button ${kind}`, onclick: () => reply(word),
  }, text, make("kbd", { "aria-hidden": "true" }, key)));
  return make("div", { class: "question" },
    make("figure", { class: "large" }, patientImage({ src: thumbnail(one.id, 640), alt: `The photo ${one.name}`, width: 640, height: 480 }),
      make("figcaption", {}, make("a", { href: `#photo/${one.id}` }, one.name))),
    make("div", {},
      make("p", { class: "ask", id: "check-ask", "aria-live": "polite" }, "Does this photo match ", make("strong", {}, answer.query), "?"),
      answer.question.repeated ? make("p", { class: "muted small" }, "You have seen this photo before: some are asked about twice.") : null,
      make("div", { class: "answers" }, ...buttons), after));
}

function result(answer, after) {
  const tiles = answer.photos.map((one) => make("li", {}, make("a", { href: `#photo/${one.id}` },
    make("img", { src: thumbnail(one.id), alt: "", loading: "lazy", width: 320, height: 320 }),
    make("span", { class: "file" }, one.name))));
  const most = answer.left > tiles.length ? `The first ${count(tiles.length)} of ${count(answer.left)} photos` : `The ${count(answer.left)} photos`;
  return make("div", {}, after, answer.statement
    ? make("section", {}, make("h2", {}, `${most} of this list`), make("ul", { class: "grid", "aria-label": "Photos of the list" }, ...tiles)) : null);
}
