// Talking to the server: every error becomes one sentence.

const API = "/api/v1";

export class ServerError extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const GONE = "The server does not answer. Is it still running?";
let signIn = async () => {};

export function onTokenWanted(action) {
  signIn = action;
}

export async function get(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return ask(API + path + (text ? `?${text}` : ""));
}

export async function send(method, path, value) {
  return ask(API + path, {
    method,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(value),
  });
}

export async function svg(path, parameters) {
  const text = await ask(`${API}${path}?${new URLSearchParams(parameters)}`, {}, (r) => r.text());
  const node = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  return document.importNode(node, true);
}

async function ask(address, options = {}, read = (response) => response.json()) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", ...options });
  } catch {
    throw new ServerError(GONE);
  }
  if (response.status === 401 && !address.endsWith("/session")) {
    await signIn();
    return ask(address, options, read);
  }
  if (!response.ok) {
    throw problem(response.status, await response.text(), response.headers.get("Retry-After"));
  }
  return response.status === 204 ? null : read(response);
}

function problem(status, text, retryAfter) {
  let detail = "";
  try {
    detail = JSON.parse(text).detail;
  } catch {
    detail = `The server answered ${status}.`;
  }
  return new ServerError(detail, status, retryAfter === null ? null : Number(retryAfter));
}

// An upload tells how far it is, which fetch cannot; `signal` stops it.
export function upload(path, file, onProgress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", API + path);
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) onProgress(event.loaded / event.total);
    });
    request.addEventListener("load", () => {
      if (request.status < 300) resolve(JSON.parse(request.responseText));
      else reject(problem(request.status, request.responseText, request.getResponseHeader("Retry-After")));
    });
    request.addEventListener("error", () => reject(new ServerError(GONE)));
    request.addEventListener("abort", () => reject(new ServerError("Stopped.")));
    signal.addEventListener("abort", () => request.abort());
    const form = new FormData();
    form.append("file", file);
    request.send(form);
  });
}

export const thumbnail = (id, side = 320) => `${API}/photos/${id}/thumbnail?side=${side}`;
