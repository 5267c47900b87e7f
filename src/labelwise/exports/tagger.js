// Tags photos in this page. Nothing is sent anywhere: the model and its runtime lie beside it.
import * as ort from "./ort/ort.wasm.bundle.min.mjs";

const facts = JSON.parse(document.getElementById("facts").textContent);
const SHOWN = 6;
const MAX_PIXELS = 40_000_000;

ort.env.logLevel = "error";
ort.env.wasm.numThreads = 1; // more would need headers that a plain server does not send
ort.env.wasm.wasmPaths = { wasm: new URL("./ort/ort-wasm-simd-threaded.wasm", import.meta.url).href };
const session = ort.InferenceSession.create(new URL("./model.onnx", import.meta.url).href, {
  executionProviders: ["wasm"],
  logSeverityLevel: 3,
});

/** The upright RGB pixels of an image file, alpha laid on white, colours as they are stored. */
export async function pixelsOf(blob) {
  const bitmap = await createImageBitmap(blob, {
    imageOrientation: "from-image", colorSpaceConversion: "none",
  });
  const { width, height } = bitmap;
  if (width * height > MAX_PIXELS) {
    throw new Error(`the picture has more than ${MAX_PIXELS.toLocaleString("en")} pixels`);
  }
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  const rgba = context.getImageData(0, 0, width, height).data;
  const rgb = new Uint8Array(width * height * 3);
  for (let from = 0, to = 0; from < rgba.length; from += 4) {
    rgb[to++] = rgba[from];
    rgb[to++] = rgba[from + 1];
    rgb[to++] = rgba[from + 2];
  }
  return { rgb, width, height };
}

/** All outputs of the model for one picture, as plain arrays. */
export async function answer({ rgb, width, height }) {
  const image = new ort.Tensor("uint8", rgb, [height, width, 3]);
  const outputs = await (await session).run({ image });
  return Object.fromEntries(Object.entries(outputs).map(([name, t]) => [name, [...t.data]]));
}

const element = (name, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
};
const percent = (p) => `${(100 * p).toFixed(p < 0.1 ? 1 : 0)} %`;

function bars(answers) {
  const scores = facts.ranks ? answers.logits : answers.probability;
  const chosen = facts.ranks ? [] : answers.label;
  const order = scores.map((_, k) => k).sort((a, b) => scores[b] - scores[a]);
  const shown = order.filter((k, place) => place < SHOWN || chosen[k]);
  const list = element("ul", { className: "bars" });
  for (const k of shown) {
    const bar = element("span", { className: "bar" });
    bar.style.setProperty("--share", facts.ranks ? 0 : scores[k]);
    const value = facts.ranks ? scores[k].toFixed(2) : percent(scores[k]);
    list.append(element("li", { className: chosen[k] ? "chosen" : "" },
      element("span", { className: "name", textContent: facts.labels[k] }),
      element("span", { className: "value", textContent: value }), bar));
  }
  return list;
}

function decided(answers) {
  if (facts.ranks) return "This model ranks labels; it has no probabilities.";
  const surest = (a, b) => answers.probability[b] - answers.probability[a];
  const chosen = facts.labels.map((_, k) => k).filter((k) => answers.label[k]).sort(surest);
  const names = chosen.map((k) => facts.labels[k]);
  return names.length ? names.join(", ") : `none (${percent(answers.none[0])} sure)`;
}

const photos = document.getElementById("photos");
const status = document.getElementById("status");
let waiting = Promise.resolve();
let done = 0;

/** Add a card for one photo; photos are answered one after the other. */
function add(blob, name) {
  const picture = element("img", { alt: "", src: URL.createObjectURL(blob) });
  const words = element("p", { className: "decided", textContent: "waiting ..." });
  const body = element("div", { className: "body" }, element("h2", { textContent: name }), words);
  photos.prepend(element("article", { className: "photo" }, picture, body));
  waiting = waiting.then(async () => {
    try {
      const pixels = await pixelsOf(blob);
      const start = performance.now();
      const answers = await answer(pixels);
      const spent = Math.round(performance.now() - start);
      words.textContent = decided(answers);
      body.append(bars(answers));
      done += 1;
      status.textContent = `${done} ${done === 1 ? "photo" : "photos"} tagged, the last in ${spent} ms`;
    } catch (error) {
      words.textContent = `This file cannot be tagged: ${error.message ?? error}`;
      words.className = "decided failed";
      picture.remove();
    }
  });
}

const addAll = (files) => {
  for (const file of files) add(file, file.name || "photo");
};

const input = document.getElementById("files");
input.addEventListener("change", () => { addAll(input.files); input.value = ""; });
const drop = document.getElementById("drop");
for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
}
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) drop.classList.remove("over");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  addAll(event.dataTransfer.files);
});
document.addEventListener("paste", (event) => addAll(event.clipboardData.files));

const camera = document.getElementById("camera");
const video = document.getElementById("video");
camera.addEventListener("click", async () => {
  try {
    if (!video.srcObject) {
      video.srcObject = await navigator.mediaDevices.getUserMedia({
        video: { facingMode: "environment" },
      });
      video.hidden = false;
      await video.play();
      camera.textContent = "Take the picture";
      return;
    }
    const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
    canvas.getContext("2d").drawImage(video, 0, 0);
    add(await canvas.convertToBlob(), "camera");
    for (const track of video.srcObject.getTracks()) track.stop();
    video.srcObject = null;
    video.hidden = true;
    camera.textContent = "Use the camera";
  } catch (error) {
    status.textContent = `The camera cannot be used: ${error.message ?? error}`;
  }
});

session.then(
  () => { status.textContent = "Ready. Photos stay in this browser."; document.body.dataset.ready = "yes"; },
  (error) => { status.textContent = `The model cannot be loaded: ${error.message ?? error}`; },
);
