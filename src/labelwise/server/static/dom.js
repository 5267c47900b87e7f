// Elements, made with text and never with markup.

export const find = (id) => document.getElementById(id);

export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Never rounds to certainty, as in the report.
export function chance(p) {
  if (p >= 0.9995 && p < 1) return ">99.9\u00a0%";
  if (p > 0 && p < 0.0005) return "<0.1\u00a0%";
  return `${(100 * p).toFixed(1)}\u00a0%`;
}

// Tenths are worth reading only of small numbers.
export const count = (n) => n.toLocaleString("en", { maximumFractionDigits: n < 10 ? 1 : 0 });

// A bar of a probability, with a mark where the label begins to be given.
export function meter(p, yes = false, threshold = null) {
  const bar = make("i", { class: yes ? "yes" : null });
  bar.style.width = `${(100 * p).toFixed(1)}%`;
  const limit = threshold === null ? null : make("b", { title: `given from ${chance(threshold)} on` });
  if (limit) limit.style.left = `${Math.min(99, 100 * threshold).toFixed(1)}%`;
  return make("span", { class: "meter", "aria-hidden": "true" }, bar, limit);
}

// A picture that fails to load is asked for once more before it is given up.
export function patientImage(properties, lost = () => {}) {
  let failed = false;
  const image = make("img", { ...properties, onerror: () => {
    if (failed) { image.classList.add("lost"); lost(); return; }
    failed = true;
    setTimeout(() => { image.src = `${properties.src}&again=1`; }, 800);
  } });
  return image;
}

// Single keys while a view is shown, wherever nothing is being typed.
export function onKeys(view, actions) {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=checkbox]), select, textarea, dialog");
    if (find(view).hidden || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = actions[event.key.toUpperCase()];
    if (action) { event.preventDefault(); action(); }
  });
}

let fading;
export function say(text, seconds = 3.5) {
  const toast = find("toast");
  toast.textContent = text;
  clearTimeout(fading);
  fading = setTimeout(() => { toast.textContent = ""; }, seconds * 1000);
}

// Ask again, as long as the server says that it has no room now, unless `signal` stops it.
export async function patiently(ask, signal) {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (error.status !== 429) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * (error.retryAfter || 1)));
      if (signal.aborted) throw new Error("Stopped.");
    }
  }
}

export function table(caption, head, rows) {
  const cell = (value, place) =>
    place ? make("td", {}, value) : make("th", { scope: "row" }, value);
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    make("table", {},
      make("caption", {}, make("span", {}, caption)),
      make("thead", {}, make("tr", {}, ...head.map((word) => make("th", { scope: "col" }, word)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell))))));
}
