// The API as its own description tells it: requests, parameters, answers, and a try of those that read.

import { find, make, table } from "./dom.js";

const SHOWN = 20000;  // characters of an answer
const named = (reference) => reference.split("/").pop();

function kind(schema) {
  if (!schema) return "";
  if (schema.$ref) return named(schema.$ref);
  if (schema.anyOf || schema.oneOf) return (schema.anyOf ?? schema.oneOf).map(kind).filter((one) => one !== "null").join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const !== undefined) return String(schema.const);
  if (schema.type === "array") return `list of ${kind(schema.items) || "anything"}`;
  return [schema.type, schema.format].filter(Boolean).join(" ") || "anything";
}

function parameters(name, operation) {
  const list = operation.parameters ?? [];
  if (!list.length) return [];
  const rows = list.map((one) => [one.name, one.required || one.in === "path" ? "yes" : "no",
    kind(one.schema), one.schema?.default === undefined ? "" : String(one.schema.default), one.description ?? ""]);
  return [table(`Parameters of ${name}`, ["name", "needed", "type", "unless given", "meaning"], rows)];
}

function body(name, operation) {
  const content = operation.requestBody?.content ?? {};
  const rows = Object.entries(content).map(([type, one]) => [type, kind(one.schema)]);
  return rows.length ? [table(`Body of ${name}`, ["content type", "schema"], rows)] : [];
}

function answers(name, operation) {
  const rows = Object.entries(operation.responses ?? {}).map(([code, one]) =>
    [code, one.description ?? "", Object.entries(one.content ?? {}).map(([type, part]) => `${kind(part.schema) || "text"} as ${type}`).join(", ")]);
  return [make("details", {}, make("summary", {}, "Answers"), table(`Answers of ${name}, by status`, ["status", "meaning", "content"], rows))];
}

function trial(path, operation) {
  const fields = (operation.parameters ?? []).filter((one) => one.in === "path" || one.in === "query");
  const inputs = fields.map((one) => {
    const id = `${operation.operationId}-${one.name}`;
    return [one, make("input", { type: "text", id, required: one.required ?? false }), make("label", { for: id }, one.name)];
  });
  const shown = make("pre", { class: "answer", tabindex: 0, role: "region", "aria-label": "The answer", hidden: true });
  const form = make("form", { class: "options" }, ...inputs.map(([, input, label]) => make("span", { class: "option" }, label, input)),
    make("button", { class: "button quiet", type: "submit" }, "Try it"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let address = path;
    const query = new URLSearchParams();
    for (const [one, input] of inputs) {
      if (one.in === "path") address = address.replace(`{${one.name}}`, encodeURIComponent(input.value));
      else if (input.value !== "") query.set(one.name, input.value);
    }
    shown.hidden = false;
    shown.textContent = "…";
    try {
      const response = await fetch(query.size ? `${address}?${query}` : address);
      const type = response.headers.get("content-type") ?? "";
      const text = /json/.test(type) ? JSON.stringify(await response.json(), null, 2)
        : /^(text|image\/svg)/.test(type) ? await response.text() : `${(await response.blob()).size} bytes of ${type}`;
      shown.textContent = `${response.status}\n${text.slice(0, SHOWN)}${text.length > SHOWN ? "\n…" : ""}`;
    } catch {
      shown.textContent = "The server does not answer. Is it still running?";
    }
  });
  return [form, shown];
}

function request(method, path, operation) {
  const name = `${method.toUpperCase()} ${path}`;
  return make("details", { class: "request" },
    make("summary", {}, make("code", {}, name), ` ${operation.summary ?? ""}`),
    operation.description ? make("p", { class: "muted" }, operation.description) : null,
    ...parameters(name, operation), ...body(name, operation), ...answers(name, operation), ...(method === "get" ? trial(path, operation) : []));
}

function schemas(components) {
  const parts = Object.entries(components?.schemas ?? {}).sort(([one], [other]) => one.localeCompare(other)).map(([name, schema]) =>
    make("details", {}, make("summary", {}, make("code", {}, name), ` ${(schema.description ?? "").split("\n")[0]}`),
      table(`Fields of ${name}`, ["field", "type", "always there"], Object.entries(schema.properties ?? {}).map(([field, one]) =>
        [field, kind(one), (schema.required ?? []).includes(field) ? "yes" : "no"]))));
  return parts.length ? [make("h2", {}, "Schemas"), ...parts] : [];
}

async function start() {
  const place = find("api");
  try {
    const response = await fetch("/openapi.json");
    if (response.status === 401) {
      place.replaceChildren(make("p", {}, "This server wants its token. ", make("a", { href: "/" }, "Sign in on the page"), ", then come back."));
      return;
    }
    const api = await response.json();
    const requests = Object.entries(api.paths).flatMap(([path, methods]) =>
      Object.entries(methods).filter(([, one]) => one.responses).map(([method, one]) => request(method, path, one)));
    place.replaceChildren(make("h2", {}, "Requests"), ...requests, ...schemas(api.components));
  } catch {
    place.replaceChildren(make("p", { class: "error", role: "alert" }, "The description cannot be read. Is the server still running?"));
  }
}

start();
