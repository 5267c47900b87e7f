// Who answers: a name that this browser keeps; it goes with answers, and with receipts.

import { find } from "./dom.js";

const KEPT = "labelwise.who";
const LONGEST = 100;  // as the server takes it

export const who = () => find("who").value.trim().slice(0, LONGEST);

// Fill the field of the page with the name kept, and keep what is typed there.
export function keepName(changed = () => {}) {
  const field = find("who");
  try {
    field.value = (localStorage.getItem(KEPT) ?? "").slice(0, LONGEST);
  } catch {
    // a browser that keeps nothing
  }
  field.addEventListener("change", () => {
    try { localStorage.setItem(KEPT, who()); } catch { /* a browser that keeps nothing */ }
    changed();
  });
}

// What an answer says of who gave it: nothing where there is no name.
export const signed = () => (who() ? { who: who() } : {});
