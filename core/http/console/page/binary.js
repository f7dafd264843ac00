// Tensors in the binary form of the protocol: behind the JSON, each as its elements' bytes, the lowest first.

const float = new Float32Array(1), bits = new Uint32Array(float.buffer);
const bitsOf = (value) => { float[0] = value; return bits[0]; };
const ofBits = (value) => { bits[0] = value; return float[0]; };

function half(value) {
  const of32 = bitsOf(value), sign = (of32 >>> 16) & 0x8000, size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | toEven(size * 2 ** 24);
  const kept = (((of32 >>> 23) & 0xff) - 112) << 10 | ((of32 >>> 13) & 0x3ff), lost = of32 & 0x1fff;
  return sign | (kept + (lost > 0x1000 || (lost === 0x1000 && kept & 1) ? 1 : 0));
}

function toEven(value) {
  const low = Math.floor(value), rest = value - low;
  return low + (rest > 0.5 || (rest === 0.5 && low & 1) ? 1 : 0);
}

function ofHalf(value) {
  const sign = value & 0x8000 ? -1 : 1, exponent = (value >>> 10) & 0x1f, rest = value & 0x3ff;
  if (exponent === 31) return rest ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + rest / 1024) * 2 ** (exponent - 15) : rest * 2 ** -24);
}

function brain(value) {
  const of32 = bitsOf(value);
  return Number.isNaN(value) ? 0x7fc0 : (of32 + 0x7fff + ((of32 >>> 16) & 1)) >>> 16;
}

// Bytes of an element, the DataView's method for it, and what becomes of a value there and back.
const same = (value) => value;
const KINDS = {
  BOOL: [1, "Uint8", Number, Boolean], UINT8: [1, "Uint8", same, same], INT8: [1, "Int8", same, same],
  UINT16: [2, "Uint16", same, same], INT16: [2, "Int16", same, same], UINT32: [4, "Uint32", same, same], INT32: [4, "Int32", same, same],
  UINT64: [8, "BigUint64", BigInt, Number], INT64: [8, "BigInt64", BigInt, Number], FP32: [4, "Float32", same, same], FP64: [8, "Float64", same, same],
  FP16: [2, "Uint16", half, ofHalf], BF16: [2, "Uint16", brain, (value) => ofBits(value << 16)],
};

export function packed(datatype, values) {
  if (datatype === "BYTES") {
    const texts = values.map((each) => new TextEncoder().encode(String(each)));
    const all = new Uint8Array(texts.reduce((sum, each) => sum + 4 + each.length, 0)), view = new DataView(all.buffer);
    let at = 0;
    for (const each of texts) { view.setUint32(at, each.length, true); all.set(each, at + 4); at += 4 + each.length; }
    return all;
  }
  const [size, method, there] = KINDS[datatype], all = new Uint8Array(size * values.length), view = new DataView(all.buffer);
  values.forEach((value, i) => view[`set${method}`](i * size, there(value), true));
  return all;
}

function unpacked(datatype, all) {
  const view = new DataView(all.buffer, all.byteOffset, all.length), values = [];
  if (datatype === "BYTES") {
    for (let at = 0; at < all.length; at += 4 + view.getUint32(at, true)) values.push(new TextDecoder().decode(all.subarray(at + 4, at + 4 + view.getUint32(at, true))));
    return values;
  }
  const [size, method, , back] = KINDS[datatype];
  for (let at = 0; at < all.length; at += size) values.push(back(view[`get${method}`](at, true)));
  return values;
}

// The JSON and the tensors of a request; `isAnswered` asks for outputs in this form as well.
export function binaryRequest(body, isAnswered) {
  const tensors = body.inputs.map((each) => packed(each.datatype, each.data));
  const inputs = body.inputs.map(({ data, ...rest }, i) => ({ ...rest, parameters: { binary_data_size: tensors[i].length } }));
  const head = { ...body, inputs };
  if (isAnswered) head.parameters = { ...body.parameters, binary_data_output: true };
  return { head: JSON.stringify(head), tensors };
}

const LENGTH = "Inference-Header-Content-Length";

export function sentBinary({ head, tensors }) {
  const text = new TextEncoder().encode(head);
  return { body: new Blob([text, ...tensors]), headers: { "Content-Type": "application/octet-stream", [LENGTH]: String(text.length) } };
}

// A line for a shell: printf makes the bytes.
export function binaryCurl(address, { head, tensors }) {
  const text = head.replaceAll("\\", "\\\\").replaceAll("%", "%%").replaceAll("'", "'\\''");
  const octal = tensors.map((each) => [...each].map((byte) => `\\${byte.toString(8).padStart(3, "0")}`).join("")).join("");
  return `printf '${text}${octal}' | curl -s ${address} \\\n  -H 'Content-Type: application/octet-stream' -H '${LENGTH}: ${new TextEncoder().encode(head).length}' --data-binary @-`;
}

// The document of an answer in either form, with the elements of each output.
export async function answered(response) {
  const length = response.headers.get(LENGTH);
  if (length == null) return response.json();
  const all = new Uint8Array(await response.arrayBuffer());
  const document = JSON.parse(new TextDecoder().decode(all.subarray(0, +length)));
  let at = +length;
  for (const output of document.outputs) {
    const size = output.parameters?.binary_data_size;
    if (size == null) continue;
    output.data = unpacked(output.datatype, all.subarray(at, at + size));
    at += size;
  }
  return document;
}
