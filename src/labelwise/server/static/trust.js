// What speaks for and against the model today: alarms, promises, shares, reliability per label.

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
    body.replaceChildren(
      ...trust.notes.map((note) => make("p", { class: "note" }, note)),
      ...promises(trust.promises), ...(kept ? receipts(kept) : []), ...alarms(trust.alarms), ...reliable(labels), ...shares(trust.shares));
  } catch (error) {
    body.replaceChildren(make("p", { class: "error", role: "alert" }, error.message));
  }
  body.removeAttribute("aria-busy");
}

function promises(list) {
  if (!list.length) {
    return [make("h2", {}, "Guarantees"), make("p", { class: "muted" }, "This model was trained without a guarantee. ", make("code", {}, "labelwise train --guarantee precision=0.9"), " gives one.")];
  }
  return [make("h2", {}, "Guarantees"), make("ul", {}, ...list.map((one) => make("li", {},
    verdict(one.verdict, one.verdict === "broken", one.verdict === "kept"), ` — ${one.text}. On reviewed photos: ${one.checked}.`)))];
}

function receipts({ receipts: list, together }) {
  if (!list.length) return [];
  const asked = (one) => one.kind === "tested" ? one.query : make("a", { href: `#search/${encodeURIComponent(one.query)}` }, one.query);
  const line = (one) => [String(one.number), asked(one),
    make("span", { class: "said" }, `${one.text}.`), `${one.at.slice(0, 10)}, ${one.who}`,
    make("span", { class: "said" }, one.withdrawn ? "withdrawn" : verdict(one.verdict, one.verdict === "broken", one.verdict === "kept"), `: ${one.told.replace(/^[a-z ]+: /, "")}.`)];
  const head = ["receipt", "query", "promise", "made", "answers since then"];
  const parts = [make("h2", {}, "Lists and tags that were promised"), make("p", {}, `${together[0].toUpperCase()}${together.slice(1)}.`),
    table("Receipts of promised lists and tags, the latest first", head, list.slice(0, FEW).map(line))];
  if (list.length > FEW) {
    parts.push(make("details", {}, make("summary", {}, `${list.length - FEW} more`), table("The other receipts", head, list.slice(FEW).map(line))));
  }
  parts.push(make("p", {}, make("a", { href: "/api/v1/receipts", download: "receipts.json" }, "All receipts as JSON")));
  return parts;
}

function alarms(list) {
  if (!list.length) return [];
  const raised = list.filter((one) => one.raised);
  const audited = list.reduce((sum, one) => sum + one.audited, 0);
  const words = raised.length
    ? `Probabilities can no longer be trusted for: ${raised.map((one) => one.label).join(", ")}. Calibrate again on newer photos.`
    : audited ? "No alarm. The chance that any alarm is false is at most 5 %, however often you look."
      : "No photo has been audited yet.";
  return [make("h2", {}, "Is it still calibrated?"),
    make("p", { class: raised.length ? "error" : null }, words),
    make("p", {}, make("a", { href: "#review/audit" }, `Audit ${audited ? "more" : "some"} photos, drawn at random`)),
    audited ? table("Audited photos, and how many of them should carry the label if the probabilities are right",
      ["label", "audited", "carry it", "expected", "evidence against", "alarm at", "verdict"],
      list.filter((one) => one.audited).map((one) => [one.label, count(one.audited), count(one.present),
        one.expected.toFixed(1), one.evidence.toPrecision(3), count(one.threshold), verdict(one.raised ? "alarm" : "fine", one.raised, !one.raised)])) : null,
  ].filter(Boolean);
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
      parts.push(make("details", {}, make("summary", {}, `${lines.length - FEW} more labels`),
        table("The other labels", head, lines.slice(FEW))));
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
    make("p", { class: "muted" }, "On the diagonal a probability means what it says. The worst calibrated label stands first."),
    make("p", { class: "options" }, make("label", { for: "reliability-of" }, "Label"), select),
    make("div", { class: "reliable" }, place, sentences)];
}
