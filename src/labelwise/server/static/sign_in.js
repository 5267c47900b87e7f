// The dialog that asks for the server's token.

import { send } from "./api.js";
import { find } from "./dom.js";

export function askForToken() {
  const dialog = find("sign-in");
  return new Promise((resolve) => {
    find("sign-in-form").onsubmit = async (event) => {
      event.preventDefault();
      try {
        await send("POST", "/session", { token: find("token").value });
        find("token").value = "";
        dialog.close();
        resolve();
      } catch (error) {
        find("sign-in-error").textContent = error.message;
      }
    };
    if (!dialog.open) dialog.showModal();
  });
}
