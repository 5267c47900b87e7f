// Do the probabilities still fit? Then guarantees, receipts, reliability per label, shares.

import { get, svg } from "./api.js";
import { chance, count, find, make, table } from "./dom.js";

const FEW = 8;
const share = (value) => `${(100 * value).toFixed(1)} %`;
const verdict = (word, bad, good) => make("span", { class: `verdict ${bad ? "bad" : good ? "good" : ""}` }, word);

let withPhotos = false;

export const know = (model) => { withPhotos = model.photos !== null; };

export async function open() {
  const body = find("trust-body");
  body.setAttribute("aria-busy", "true");
  if (!body.children.length) body.append(make("p", { class: "muted" }, "Counting what held-out photos say…"));
  try {
    const asked = [get("/trust"), get("/labels"), withPhotos ? get("/receipts") : null];
    const [trust, labels, kept] = await Promise.all(asked);
    body.replaceChildren(answer(trust), ...promises(trust.promises), ...(kept ? receipts(kept) : []), ...reliable(labels), ...shares(trust.shares),
      ...(trust.notes.length ? [folded("What these answers rest on", ...trust.notes.map((note) => make("p", { class: "muted" }, note)))] : []));
  } catch (error) {
    body.replaceChildren(make("p", { class: "failed", role: "alert" }, error.message, " ",
      make("button", { class: "button quiet row-action", onclick: open }, "Try again")));
  }
  body.removeAttribute("aria-busy");
}

const folded = (title, ...parts) => make("details", { class: "fold" }, make("summary", {}, title), ...parts);

// One answer first: do the probabilities still fit?
function answer({ fits, answers, answers_needed: needed, alarms: list }) {
  const raised = list.filter((one) => one.raised).map((one) => one.label);
  const [word, kind, why] = {
    yes: ["Yes", "good", `${count(answers)} random questions were answered, and no label disagrees. The chance of a false alarm is at most 5 %, however often you look.`],
    no: ["No", "bad", `The answers disagree for: ${raised.join(", ")}. Calibrate again on newer photos before you rely on ${raised.length === 1 ? "it" : "them"}.`],
    "too few answers": ["Too few answers yet", "", withPhotos
      ? `${count(answers)} of ${count(needed)} random questions are answered. It takes about a minute.`
      : "Nobody can be asked here, because no library is served. Start the server with one: labelwise serve RUN INDEX."],
  }[fits];
  return make("div", { class: `verdict-card ${kind}` },
    make("p", { class: "what" }, "Do the probabilities still fit?"), make("p", { class: "word" }, word), make("p", {}, why),
    withPhotos ? make("p", {}, make("a", { class: "button quiet", href: "#review/audit" }, `Answer ${answers ? "more" : "some"} random questions`)) : null,
    ...alarms(list));
}

function promises(list) {
  if (!list.length) {
    return [make("h2", {}, "Guarantees of the model"), make("p", { class: "muted" }, "This model was trained without a guarantee. Training with ", make("code", {}, "--guarantee precision=0.9"), " gives one.")];
  }
  return [make("h2", {}, "Guarantees of the model"), make("ul", {}, ...list.map((one) => make("li", {},
    verdict(one.verdict, one.verdict === "broken", one.verdict === "kept"), ` — ${one.text}. On reviewed photos: ${one.checked}.`)))];
}

function receipts({ receipts: list, together }) {
  if (!list.length) return [];
  const asked = (one) => one.kind === "tested" ? one.query : make("a", { href: `#search/${encodeURIComponent(one.query)}` }, one.query);
  const item = (one) => make("li", {},
    make("p", { class: "top" }, make("span", { class: "muted" }, `Receipt ${one.number} `), asked(one), " ",
      one.withdrawn ? make("span", { class: "verdict" }, "withdrawn") : verdict(one.verdict, one.verdict === "broken", one.verdict === "kept")),
    make("p", {}, `${one.text}.`),
    make("p", { class: "muted small" }, `${one.at.slice(0, 10)}, ${one.who}. Answers since then: ${one.told.replace(/^[a-z ]+: /, "")}.`));
  const some = (part) => make("ul", { class: "receipts" }, ...part.map(item));
  const parts = [make("h2", {}, "Guarantees given for lists and tags"), make("p", {}, `${together[0].toUpperCase()}${together.slice(1)}.`), some(list.slice(0, FEW))];
  if (list.length > FEW) parts.push(folded(`${list.length - FEW} more`, some(list.slice(FEW))));
  parts.push(make("p", {}, make("a", { href: "/api/v1/receipts", download: "receipts.json" }, "All receipts as JSON")));
  return parts;
}

function alarms(list) {
  const audited = list.filter((one) => one.audited);
  if (!audited.length) return [];
  return [folded("Answers by label", table("Audited photos, and how many of them should carry the label if the probabilities are right",
    ["label", "audited", "carry it", "expected", "evidence against", "alarm at", "verdict"],
    audited.map((one) => [one.label, count(one.audited), count(one.present),
      one.expected.toFixed(1), one.evidence.toPrecision(3), count(one.threshold), verdict(one.raised ? "alarm" : "fine", one.raised, !one.raised)])))];
}

function shares(list) {
  const parts = [];
  for (const source of ["library", "recent pictures"]) {
    const rows = list.filter((one) => one.source === source);
    if (!rows.length) continue;
    const moved = [...rows].sort((a, b) => b.moved - a.moved || Math.abs(b.now - b.before) - Math.abs(a.now - a.before));
    const lines = moved.map((one) => [one.label, share(one.before), share(one.now), `${share(one.low)} to ${share(one.high)}`,
      one.moved ? verdict(one.now > one.before ? "more" : "fewer", true) : "as before"]);
    const head = ["label", "held-out photos", "now", "interval", "change"];
    parts.push(make("h2", {}, source === "library" ? "Labels in the library" : "Labels in recent pictures"),
      make("p", { class: "muted" }, `Estimated from ${count(rows[0].photos)} photos, supposing that each label looks as it did and is only more or less frequent.`),
      table("Share of photos that carry the label, those that changed most first", head, lines.slice(0, FEW)));
    if (lines.length > FEW) {
      parts.push(folded(`${lines.length - FEW} more labels`, table("The other labels", head, lines.slice(FEW))));
    }
  }
  return parts;
}

function reliable(labels) {
  const known = labels.filter((one) => one.bins.length);
  if (!known.length) return [];
  const worst = [...known].sort((a, b) => (b.ece ?? 0) - (a.ece ?? 0));
  const place = make("div", { class: "chart-place" });
  const sentences = make("div");
  const select = make("select", { id: "reliability-of" }, ...worst.map((one) =>
    make("option", { value: one.label }, `${one.label} (ECE ${((one.ece ?? 0) * 100).toFixed(1)} %)`)));
  const draw = async () => {
    const one = known.find((label) => label.label === select.value);
    const filled = one.bins.filter((bin) => bin.photos);
    sentences.replaceChildren(table(`Held-out photos by the probability they got for ${one.label}`,
      ["probability", "photos", "carry it", "share", "between"],
      filled.map((bin) => [`${(100 * bin.low).toFixed(0)}–${(100 * bin.high).toFixed(0)} %`, count(bin.photos), count(bin.carried),
        chance(bin.carried / bin.photos), `${share(bin.share_low)} and ${share(bin.share_high)}`])));
    try {
      const chart = await svg("/labels/reliability.svg", { label: one.label });
      if (select.value === one.label) place.replaceChildren(chart);
    } catch (error) {
      place.replaceChildren(make("p", { class: "error" }, error.message));
    }
  };
  select.addEventListener("change", draw);
  draw();
  return [make("h2", {}, "Reliability per label"),
    make("p", { class: "muted" }, "On the diagonal a probability means what it says. The worst calibrated label comes first."),
    make("p", { class: "options" }, make("label", { for: "reliability-of" }, "Label"), select),
    make("div", { class: "reliable" }, place, sentences)];
}
