// What became of held-out photos that got about the same probability.

import { get } from "./api.js";
import { chance } from "./dom.js";

const labels = new Map();  // of each model, by the path that asks it

export async function reliability(path, label, probability) {
  if (!labels.has(path)) {
    labels.set(path, get(`${path}/labels`).catch((error) => { labels.delete(path); throw error; }));
  }
  const found = (await labels.get(path)).find((one) => one.label === label);
  if (!found || !found.bins.length) {
    return "No predictions of held-out photos are kept with this model, so nothing can be said of it.";
  }
  const bin = found.bins.find((one, at) => probability <= one.high || at === found.bins.length - 1);
  if (!bin.photos) return bin.sentence;
  return `${bin.sentence} That is ${chance(bin.carried / bin.photos)}; with this many photos the true share lies between ${chance(bin.share_low)} and ${chance(bin.share_high)}.`;
}
