// Many photos become one job: they are sent one after the other, answered when the server has
// time, and their answers are a table to download.

import { get, jobResults, send, upload } from "./api.js";
import { count, find, make, patiently, say } from "./dom.js";

const LOOK_AGAIN = 1000;  // milliseconds
const STATES = { open: "waits for photos", working: "under way", done: "done", cancelled: "stopped" };

const rows = new Map();
const sending = new Map();  // how many photos a job of this page gets, and what was not taken
let looking = null;
let looks = 0;

// Send photos as one job for a model; null is the first one.
export async function run(files, model, tooLarge) {
  let job;
  try {
    job = await send("POST", "/jobs", { model });
  } catch (error) {
    say(error.message, 8);
    return;
  }
  const sent = { photos: files.length, refused: [], stopper: new AbortController() };
  sending.set(job.id, sent);
  look();
  for (const file of files) {
    if (sent.stopper.signal.aborted) break;
    try {
      const problem = tooLarge(file);
      if (problem) throw new Error(problem);
      await patiently(() => upload(`/jobs/${job.id}/pictures`, file, () => {}, sent.stopper.signal), sent.stopper.signal);
    } catch (error) {
      if (sent.stopper.signal.aborted || error.status === 404 || error.status === 409) break;  // it was stopped or deleted
      sent.refused.push(`${file.name}: ${error.message}`);
      if (error.status === 0) break;  // the server is gone
    }
  }
  if (!sent.stopper.signal.aborted) {
    try {
      await send("POST", `/jobs/${job.id}/close`, {});
    } catch (error) {
      if (error.status !== 404) say(error.message, 8);
    }
  }
  sent.done = true;
  look();
}

// Show all jobs of the server, and again while one of them goes on.
export async function look() {
  const number = ++looks;
  let jobs;
  try {
    jobs = await get("/jobs");
  } catch (error) {
    say(error.message, 8);
    return;
  }
  if (number !== looks) return;  // a later answer counts
  find("jobs-place").hidden = !jobs.length;
  for (const [id, row] of rows) {
    if (!jobs.some((job) => job.id === id)) { row.element.remove(); rows.delete(id); }
  }
  for (const job of [...jobs].reverse()) {
    if (!rows.has(job.id)) {
      rows.set(job.id, new Row(job));
      find("jobs").prepend(rows.get(job.id).element);
    }
    rows.get(job.id).show(job);
  }
  const goesOn = jobs.some((job) => job.answered < job.received && job.state !== "cancelled")
    || [...sending.values()].some((sent) => !sent.done);
  clearTimeout(looking);
  if (goesOn) looking = setTimeout(look, LOOK_AGAIN);
}

class Row {
  constructor(job) {
    this.id = job.id;
    const made = new Date(job.made).toLocaleString();
    this.progress = make("progress", { max: 1, value: 0, "aria-label": `Answered, of the job of ${made}` });
    this.state = make("p", { role: "status" });
    this.refused = make("ul", { class: "small error", hidden: true });
    this.stop = make("button", { class: "button quiet row-action", onclick: () => this.ask("POST", "/cancel") }, "Stop");
    this.csv = make("a", { class: "button quiet row-action", href: jobResults(job.id, "csv"), download: "labels.csv" }, "Download CSV");
    this.lines = make("a", { class: "button quiet row-action", href: jobResults(job.id, "jsonl"), download: "labels.jsonl" }, "Download JSON Lines");
    this.away = make("button", { class: "button quiet row-action", onclick: () => this.ask("DELETE", "") }, "Delete");
    this.element = make("li", {}, make("p", { class: "who" }, `${job.model}, ${made}`), this.state, this.progress, this.refused,
      make("p", { class: "options" }, this.stop, this.csv, this.lines, this.away));
  }

  show(job) {
    const sent = sending.get(this.id), photos = Math.max(job.received, sent && !sent.done ? sent.photos - sent.refused.length : 0);
    this.progress.max = Math.max(photos, 1);
    this.progress.value = job.answered;
    const failed = job.failed ? `, ${count(job.failed)} could not be opened` : "";
    const text = `${STATES[job.state]}: ${count(job.answered)} of ${count(photos)} answered${failed}. ${job.held_up ?? ""}`.trim();
    if (this.state.textContent !== text) this.state.textContent = text;
    this.stop.hidden = !["open", "working"].includes(job.state);
    this.csv.hidden = this.lines.hidden = !job.answered;
    this.progress.hidden = job.state === "done" || job.state === "cancelled";
    const refused = sent?.refused ?? [];
    this.refused.hidden = !refused.length;
    if (this.refused.children.length !== refused.length) this.refused.replaceChildren(...refused.map((line) => make("li", {}, line)));
  }

  async ask(method, path) {
    sending.get(this.id)?.stopper.abort();
    try {
      await send(method, `/jobs/${this.id}${path}`, {});
    } catch (error) {
      say(error.message, 8);
    }
    look();
  }
}
