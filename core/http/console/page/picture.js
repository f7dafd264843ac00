// Pictures as tensors: drawn with the mouse, or read from a file.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";

// [title, what a byte from 0 to 255 becomes]
export const SCALES = [
  ["0 to 1", (byte) => +(byte / 255).toFixed(4)], ["0 to 16", (byte) => +(byte / 255 * 16).toFixed(2)], ["0 to 255", (byte) => byte],
  ["−1 to 1", (byte) => +(byte / 127.5 - 1).toFixed(4)],
  ["ImageNet's mean and deviation", (byte, channel) => +((byte / 255 - [0.485, 0.456, 0.406][channel % 3]) / [0.229, 0.224, 0.225][channel % 3]).toFixed(4)],
];
const CHANNELS = [1, 3, 4], SMALLEST = 6, SMALL = 64, FREE = 224, PEN = 26, SIDE = 256;
// Of the square around a drawing, and of its lines: so the shipped model, which knows scanned digits, reads them best.
const ROOM = 1.18, INK = 1.2;

// How the dimensions of an input are those of a picture: null if they are not. A picture has two sides: a square without
// channels, or two sides and 1, 3 or 4 channels before or behind them.
export function layoutOf(input) {
  if (input.datatype === "BYTES" || input.datatype === "BOOL") return null;
  const dims = input.hasBatch || input.shape.length === 4 ? input.shape.slice(1) : input.shape;
  const isFirst = dims.length === 2 || CHANNELS.includes(dims[0]);
  if (dims.length === 2 ? dims[0] < 0 || dims[0] !== dims[1] : dims.length !== 3 || !(isFirst || CHANNELS.includes(dims[2]))) return null;
  const channels = dims.length === 2 ? 1 : isFirst ? dims[0] : dims[2];
  const sides = dims.length === 2 ? dims : isFirst ? dims.slice(1) : dims.slice(0, 2);
  if (sides.some((side) => side >= 0 && side < SMALLEST)) return null;
  const [height, width] = sides.map((side) => (side < 0 ? FREE : side));
  const isSmall = channels === 1 && height <= SMALL && width <= SMALL;
  // Grey pictures of 8 times 8 are those of scikit-learn, with 17 shades.
  const scale = isSmall && height === 8 && width === 8 ? 1 : input.datatype === "UINT8" ? 2 : 0;
  return { height, width, channels, isFirst, isSmall, scale };
}

// The tensor of the pixels in `image`, which has the size of the layout.
function tensor(input, layout, image, [, scaled]) {
  const { height, width, channels, isFirst } = layout, data = [];
  const byte = (pixel, channel) => {
    const [r, g, b] = image.data.slice(4 * pixel, 4 * pixel + 3);
    return channels === 1 ? 0.299 * r + 0.587 * g + 0.114 * b : image.data[4 * pixel + channel];
  };
  const put = (pixel, channel) => data.push(input.datatype.startsWith("FP") ? scaled(byte(pixel, channel), channel) : Math.round(scaled(byte(pixel, channel), channel)));
  if (isFirst) for (let c = 0; c < channels; c += 1) for (let i = 0; i < height * width; i += 1) put(i, c);
  else for (let i = 0; i < height * width; i += 1) for (let c = 0; c < channels; c += 1) put(i, c);
  const sizes = isFirst ? [channels, height, width] : [height, width, channels];
  const dims = input.shape.length - (input.hasBatch || input.shape.length === 4 ? 1 : 0) === 2 ? [height, width] : sizes;
  return { shape: dims.length < input.shape.length ? [1, ...dims] : dims, data };
}

function shrink(source, box, layout) {
  const small = document.createElement("canvas");
  small.width = layout.width; small.height = layout.height;
  const context = small.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#000";
  context.fillRect(0, 0, small.width, small.height);
  const image = mean(source.getContext("2d").getImageData(0, 0, source.width, source.height), box, layout);
  context.putImageData(image, 0, 0);
  return context.getImageData(0, 0, small.width, small.height);
}

// The mean of what lies under each pixel: the browser's own scaling looks at few points only.
function mean(image, box, { width, height }) {
  const made = new ImageData(width, height), rows = 4;
  for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) {
    let sum = 0;
    for (let v = 0; v < rows; v += 1) for (let u = 0; u < rows; u += 1) {
      const px = Math.round(box.x + ((x + (u + 0.5) / rows) / width) * box.size - 0.5), py = Math.round(box.y + ((y + (v + 0.5) / rows) / height) * box.size - 0.5);
      if (px >= 0 && py >= 0 && px < image.width && py < image.height) sum += image.data[4 * (py * image.width + px)];
    }
    const at = 4 * (y * width + x);
    made.data[at] = made.data[at + 1] = made.data[at + 2] = Math.min(255, (INK * sum) / (rows * rows));
    made.data[at + 3] = 255;
  }
  return made;
}

// The square around what was drawn: models learn from pictures that a digit fills.
function around(canvas) {
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let left = width, right = -1, top = height, bottom = -1;
  for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) if (data[4 * (y * width + x)] > 60) {
    left = Math.min(left, x); right = Math.max(right, x); top = Math.min(top, y); bottom = Math.max(bottom, y);
  }
  if (right < 0) return null;
  const size = ROOM * (Math.max(right - left, bottom - top, SIDE / 4) + 1);
  return { size, x: (left + right - size) / 2, y: (top + bottom - size) / 2 };
}

export function Drawing({ input, layout, scale, onValue }) {
  const canvas = useRef(), seen = useRef(), pen = useRef(null);
  const [isEmpty, setEmpty] = useState(true);
  const clear = () => {
    const context = canvas.current.getContext("2d", { willReadFrequently: true });
    context.fillStyle = "#000";
    context.fillRect(0, 0, SIDE, SIDE);
    seen.current.getContext("2d").clearRect(0, 0, layout.width, layout.height);
    setEmpty(true);
    onValue(null);
  };
  const give = () => {
    const box = around(canvas.current);
    if (!box) return;
    const image = shrink(canvas.current, box, layout);
    seen.current.getContext("2d").putImageData(image, 0, 0);
    onValue(tensor(input, layout, image, scale));
  };
  useEffect(clear, []);
  useEffect(() => { if (!isEmpty) give(); }, [scale]);
  const where = (event) => {
    const place = canvas.current.getBoundingClientRect();
    return [((event.clientX - place.left) * SIDE) / place.width, ((event.clientY - place.top) * SIDE) / place.height];
  };
  const down = (event) => { canvas.current.setPointerCapture(event.pointerId); pen.current = where(event); setEmpty(false); move(event); };
  const move = (event) => {
    if (!pen.current) return;
    const context = canvas.current.getContext("2d"), to = where(event);
    context.strokeStyle = "#fff"; context.lineWidth = PEN; context.lineCap = context.lineJoin = "round";
    context.beginPath(); context.moveTo(...pen.current); context.lineTo(...to); context.stroke();
    pen.current = to;
  };
  const up = () => { if (pen.current) { pen.current = null; give(); } };
  return html`<div class="drawing"><div class="pad"><canvas ref=${canvas} width=${SIDE} height=${SIDE} aria-label=${`Draw ${input.name} here; with a keyboard choose Numbers`} role="img"
      onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${up}></canvas>${isEmpty && html`<span class="hint" aria-hidden="true">Draw here</span>`}</div>
    <div class="column"><figure><canvas class="pixels" ref=${seen} width=${layout.width} height=${layout.height} aria-label="What the model sees" role="img"></canvas><figcaption class="muted">what the model sees</figcaption></figure>
    <button type="button" class="small" disabled=${isEmpty} onClick=${clear}>Clear</button></div></div>`;
}

export function Picture({ input, layout, scale, onValue }) {
  const [image, setImage] = useState(null);
  const [told, setTold] = useState("");
  useEffect(() => { if (image) onValue(tensor(input, layout, image, scale)); }, [image, scale]);
  const read = async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    try {
      const bitmap = await createImageBitmap(file, { resizeWidth: layout.width, resizeHeight: layout.height, resizeQuality: "high" });
      const canvas = new OffscreenCanvas(layout.width, layout.height), context = canvas.getContext("2d");
      context.drawImage(bitmap, 0, 0);
      setImage(context.getImageData(0, 0, layout.width, layout.height));
      setTold(`scaled to ${layout.width} × ${layout.height}, ${layout.channels === 1 ? "grey" : `${layout.channels} channels`}`);
    } catch { onValue({ problem: `${file.name} is no picture that this browser knows.` }); }
  };
  return html`<label class="drop">A picture <input type="file" accept="image/*" aria-label=${`Picture for ${input.name}`} onChange=${read} /></label><p class="muted">${told}</p>`;
}
