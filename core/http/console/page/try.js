// A form made from the signature of a model: the request is sent as any client would, and shown in every form.

import { html, useState, useEffect, useRef } from "./vendor/preact.js";
import { ask, get, modelPath } from "./api.js";
import { answered, binaryCurl, binaryRequest, sentBinary } from "./binary.js";
import { durationText, number } from "./format.js";
import { usePoll, Loading, Failure, Empty, Card, Bars, Copy } from "./parts.js";
import { Drawing, Picture, SCALES, layoutOf } from "./picture.js";

const MOST_SHOWN = 256;
const MOST_PRINTED = 1 << 18;
const NOT_JSON = ["FP16", "BF16"];

export function TryIt({ name, row }) {
  const { data, error } = usePoll(() => (row.state === "READY" ? get("configuration", { name, version: row.version }) : null), [name, row.version, row.state], 0);
  const { data: sample } = usePoll(() => (row.state === "READY" ? ask(`${modelPath(name)}/request`).then((response) => response.json()).catch(() => ({})) : null), [name, row.version, row.state], 0);
  if (row.state !== "READY") return html`<${Empty} title="It cannot be tried now">Only a version that serves answers requests.<//>`;
  if (!data || !sample) return error ? html`<${Failure} error=${error} what="The form" />` : html`<${Loading} what="the form" />`;
  return html`<${Form} name=${name} signature=${data} sample=${sample} key=${row.version} />`;
}

// Each input is `{ shape, data }` once it can be sent, otherwise null, or `{ problem }`.
function Form({ name, signature, sample }) {
  const { metadata, in_force: config } = signature;
  const optional = new Set(config.input.filter((each) => each.optional).map((each) => each.name));
  // Texts that fit what a text model does.
  const examples = config.backend === "text" ? Object.fromEntries((sample.inputs || []).map((each) => [each.name, each.value])) : {};
  const isStream = !!config.model_transaction_policy?.decoupled;
  const [values, setValues] = useState({});
  const [answer, setAnswer] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const inputs = metadata.inputs.map((each) => ({ ...each, optional: optional.has(each.name), hasBatch: config.max_batch_size > 0, example: examples[each.name] || "" }));
  const missing = inputs.filter((each) => !each.optional && !values[each.name]?.data).map((each) => each.name);
  const problem = Object.values(values).find((each) => each?.problem)?.problem;
  const body = {
    inputs: inputs.filter((each) => values[each.name]?.data).map((each) => ({ name: each.name, datatype: each.datatype, shape: values[each.name].shape, data: values[each.name].data })),
    ...classes(metadata, config),
  };
  if (config.sequence_batching) body.parameters = { sequence_id: 1, sequence_start: true, sequence_end: true };
  const isAnsweredBinary = metadata.outputs.some((each) => NOT_JSON.includes(each.datatype));
  const isBinary = isAnsweredBinary || metadata.inputs.some((each) => NOT_JSON.includes(each.datatype));
  const send = async (event) => {
    event?.preventDefault();
    setBusy(true);
    const begin = performance.now();
    try {
      if (isStream) await stream(name, body, (events) => setAnswer({ events, us: 1000 * (performance.now() - begin) }));
      else {
        const sent = isBinary ? sentBinary(binaryRequest(body, isAnsweredBinary)) : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
        const document = await answered(await ask(`${modelPath(name)}/infer`, { method: "POST", ...sent }));
        setAnswer({ document, us: 1000 * (performance.now() - begin) });
      }
    } catch (refusal) {
      if (refusal.status === 401) window.dispatchEvent(new Event("token-needed"));
      setAnswer({ refusal });
    }
    setBusy(false);
  };
  return html`<div class="try">
    <form onSubmit=${send} class="column">
      ${inputs.map((input) => html`<${Input} key=${input.name} input=${input} onValue=${(value) => setValues((before) => ({ ...before, [input.name]: value }))} />`)}
      ${problem && html`<p class="wrong" role="alert">${problem}</p>`}
      <div class="row"><button class="main" disabled=${isBusy || missing.length || problem}>${isBusy ? "Waiting for the answer…" : "Send the request"}</button>
        ${!!missing.length && html`<span class="muted">Still needed: ${missing.join(", ")}</span>`}</div>
    </form>
    <div class="column"><${Answer} answer=${answer} /></div>
    <${Forms} name=${name} forms=${sample.forms || []} body=${body} isBinary=${isBinary} isAnsweredBinary=${isAnsweredBinary} isComplete=${!missing.length && !problem} isStream=${isStream} />
  </div>`;
}

// Where the configuration has labels, the server names the classes itself.
function classes(metadata, config) {
  const isLabelled = (each) => each.label_filename || (config.backend === "text" && each.name === "scores" && +each.dims[0] > 0);
  const labelled = config.output.filter(isLabelled).map((each) => each.name);
  if (!labelled.length) return {};
  return { outputs: metadata.outputs.map((each) => (labelled.includes(each.name) ? { name: each.name, parameters: { classification: 10 } } : { name: each.name })) };
}

async function stream(name, body, onEvents) {
  const fields = Object.fromEntries(body.inputs.map((each) => [each.name, each.data.length === 1 ? each.data[0] : each.data]));
  const response = await ask(`${modelPath(name)}/generate_stream`, { method: "POST", body: JSON.stringify(fields), headers: { "Content-Type": "application/json" } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(), events = [];
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split(/\r?\n\r?\n/);
    text = parts.pop();
    for (const part of parts) {
      const said = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (said) events.push(said);
    }
    onEvents([...events]);
  }
}

// --- inputs

function Input({ input, onValue }) {
  const layout = layoutOf(input);
  const ways = [
    ...(layout?.isSmall ? [["draw", "Draw"]] : []), ...(layout ? [["image", "Image"]] : []),
    ...(input.datatype === "BYTES" ? [["text", "Text"]] : [["numbers", "Numbers"]]), ["file", "File"],
  ];
  const [way, setWay] = useState(ways[0][0]);
  const [scale, setScale] = useState(layout?.scale || 0);
  const choose = (next) => { setWay(next); onValue(null); };
  const shape = input.shape.map((size) => (size < 0 ? "?" : size)).join(" × ") || "a single value";
  const Field = { draw: Drawing, image: Picture, text: Text, numbers: Numbers, file: File }[way];
  return html`<fieldset class="card input"><legend>${input.name} <span class="muted">${input.datatype} · ${shape}${input.optional ? " · optional" : ""}</span></legend>
    <div class="row between"><div class="switch" role="group" aria-label=${`How to give ${input.name}`}>${ways.map(([key, title]) => html`<button type="button" key=${key} aria-pressed=${way === key} onClick=${() => choose(key)}>${title}</button>`)}</div>
    ${(way === "draw" || way === "image") && html`<label class="inline">Scale <select value=${scale} onChange=${(event) => setScale(+event.target.value)}>${SCALES.map(([title], i) => html`<option key=${title} value=${i}>${title}</option>`)}</select></label>`}</div>
    <${Field} key=${way} input=${input} layout=${layout} scale=${SCALES[scale]} onValue=${onValue} /></fieldset>`;
}

// The shape of `count` elements: dimensions that may vary take what is left, the batch at last.
function fit(input, count) {
  const shape = input.shape.map((size) => (size < 0 ? 1 : size));
  const each = shape.reduce((product, size) => product * size, 1);
  if (count === each) return { shape };
  const open = input.shape.map((size, i) => (size < 0 ? i : -1)).filter((i) => i >= 0 && !(input.hasBatch && i === 0)).pop() ?? input.shape.indexOf(-1);
  if (open >= 0 && count % each === 0 && count) { shape[open] = count / each; return { shape }; }
  return { problem: `${input.name} takes ${number(each)} elements${open >= 0 ? " or a multiple" : ""}, and there ${count === 1 ? "is" : "are"} ${number(count)}.` };
}

function Numbers({ input, onValue }) {
  const size = input.shape.map((each) => (each < 0 ? 1 : each)).reduce((product, each) => product * each, 1);
  const isWhole = !input.datatype.startsWith("FP") && input.datatype !== "BF16";
  const [text, setText] = useState(() => (size <= 4096 && !input.optional ? Array(size).fill(input.datatype === "BOOL" ? "true" : "1").join(", ") : ""));
  useEffect(() => {
    const words = text.split(/[\s,;[\]]+/).filter(Boolean);
    if (!words.length) return onValue(null);
    const values = words.map((word) => (word === "true" ? true : word === "false" ? false : Number(word)));
    const wrong = words.find((word, i) => typeof values[i] === "number" && (!Number.isFinite(values[i]) || (isWhole && !Number.isInteger(values[i]))));
    if (wrong) return onValue({ problem: `${input.name}: “${wrong}” is no ${isWhole ? "whole " : ""}number.` });
    onValue({ ...fit(input, values.length), data: values });
  }, [text]);
  return html`<textarea rows=${size > 8 ? 4 : 2} spellcheck="false" aria-label=${`Elements of ${input.name}`} placeholder=${`${number(size)} ${size === 1 ? "number" : "numbers, with commas or blanks between them"}${input.optional ? "; left out if empty" : ""}`} value=${text} onInput=${(event) => setText(event.target.value)}></textarea>`;
}

function Text({ input, onValue }) {
  const [text, setText] = useState(input.example);
  useEffect(() => {
    const size = input.shape.map((each) => (each < 0 ? 1 : each)).reduce((product, each) => product * each, 1);
    const values = size === 1 && !text.includes("\n") ? [text] : text.split("\n");
    onValue(text ? { ...fit(input, values.length), data: values } : null);
  }, [text]);
  return html`<textarea rows="3" aria-label=${`Text of ${input.name}`} placeholder=${`A text; with several elements, one a line${input.optional ? "; left out if empty" : ""}`} value=${text} onInput=${(event) => setText(event.target.value)}></textarea>`;
}

function File({ input, onValue }) {
  const [told, setTold] = useState("");
  const read = async (event) => {
    const [file] = event.target.files;
    if (!file) return onValue(null);
    const text = await file.text();
    if (input.datatype === "BYTES") { onValue({ ...fit(input, 1), data: [text] }); return setTold(`${number(file.size)} bytes as one text`); }
    let values;
    try {
      const document = JSON.parse(text);
      const found = document.inputs ? document.inputs.find((each) => each.name === input.name)?.data : document;
      values = [found].flat(Infinity);
    } catch { values = text.split(/[\s,;]+/).filter(Boolean).map(Number); }
    if (values.some((each) => typeof each === "number" && !Number.isFinite(each)) || values.includes(undefined)) return onValue({ problem: `${file.name} has something else than numbers.` });
    onValue({ ...fit(input, values.length), data: values });
    setTold(`${number(values.length)} elements`);
  };
  return html`<label class="drop">A JSON array, a v2 request, or CSV <input type="file" aria-label=${`File for ${input.name}`} onChange=${read} /></label><p class="muted">${told}</p>`;
}

// --- the answer

function Answer({ answer }) {
  if (!answer) return html`<${Card} title="Answer"><p class="muted quiet">What the model answers is shown here.</p><//>`;
  if (answer.refusal) return html`<${Card} title="Answer"><div class="state failure" role="alert"><strong>${answer.refusal.message}</strong>${answer.refusal.hint && html`<span class="muted">${answer.refusal.hint}</span>`}</div><//>`;
  const note = `${durationText(answer.us)} in the browser`;
  if (answer.events) return html`<${Card} title="Events" note=${`${answer.events.length}, ${note}`}><ol class="events" aria-live="polite">${answer.events.map((each, i) => html`<li key=${i}><code>${each}</code></li>`)}</ol><//>`;
  const { document } = answer;
  return html`<${Card} title="Answer" note=${`version ${document.model_version} · ${note}`}><div aria-live="polite">${document.outputs.map((output) => html`<${Output} key=${output.name} output=${output} />`)}</div><//>`;
}

function Output({ output }) {
  const data = [output.data].flat(Infinity);
  const isClasses = output.datatype === "BYTES" && data.length && data.every((each) => /^-?[\d.e+-]+:\d+/i.test(each));
  const rows = isClasses ? data.map((each) => { const [score, index, ...label] = each.split(":"); return [label.join(":") || index, +score]; }) : [];
  if (output.name === "answer") rows.push(...scored(data[0]));
  const isVector = !rows.length && !isClasses && output.datatype.startsWith("FP") && data.length > 1 && data.length <= 32 && data.every((each) => each >= 0);
  if (isVector) rows.push(...data.map((value, i) => [String(i), value]));
  const best = rows.length ? Math.max(...rows.map(([, value]) => value)) : 0;
  return html`<div class="output"><h3>${output.name} <span class="muted">${output.datatype} · ${output.shape.join(" × ")}</span></h3>
    ${rows.length ? html`${isClasses && html`<p class="verdict">${rows.find(([, value]) => value === best)[0]}</p>`}<${Bars} label=${`Values of ${output.name}`} rows=${rows.map(([title, value]) => [title, value, Math.abs(value) < 1000 ? value.toFixed(4) : number(value), value === best])} />`
    : html`<div class="cells">${data.slice(0, MOST_SHOWN).map((each, i) => html`<span key=${i} class="cell">${typeof each === "number" ? number(each) : String(each)}</span>`)}${data.length > MOST_SHOWN && html`<span class="muted">and ${number(data.length - MOST_SHOWN)} more</span>`}</div>`}</div>`;
}

// The words, entities or answers that a text model gives as JSON, with their scores.
function scored(text) {
  let found = [];
  try { found = [JSON.parse(text)].flat(Infinity); } catch { /* another model's answer */ }
  if (!found.every((each) => typeof each?.score === "number")) return [];
  return found.map((each) => [each.token_str ?? (each.entity_group ? `${each.word} (${each.entity_group})` : each.answer ?? ""), each.score]);
}

// --- the same request, to copy

// With what the form has; all others have sample values.
const OWN = { curl: "curl with JSON", "curl-binary": "curl with binary tensors" };

function Forms({ name, forms, body, isBinary, isAnsweredBinary, isComplete, isStream }) {
  const [chosen, setChosen] = useState(isBinary ? "curl-binary" : "curl");
  const [text, setText] = useState("");
  useEffect(() => {
    if (OWN[chosen]) return;
    setText("");
    ask(`${modelPath(name)}/request?form=${encodeURIComponent(chosen)}`).then((response) => response.text()).then(setText, (refusal) => setText(refusal.message));
  }, [chosen, name]);
  const address = new URL(`${modelPath(name)}/${isStream ? "generate_stream" : "infer"}`, location.href.split("#")[0]);
  const sent = isStream ? Object.fromEntries(body.inputs.map((each) => [each.name, each.data.length === 1 ? each.data[0] : each.data])) : body;
  const place = /^[\w.:/%-]+$/.test(address) ? address.href : quoted(address.href);
  const own = () => {
    if (!isComplete) return "# Fill in the form first.";
    if (chosen === "curl") return `curl -s ${place} -d ${quoted(JSON.stringify(sent))}`;
    const request = binaryRequest(body, isAnsweredBinary);
    if (request.tensors.reduce((sum, each) => sum + each.length, 0) > MOST_PRINTED) return "# The tensors are too large for a line of a shell: send them with one of the clients.";
    return binaryCurl(place, request);
  };
  const shown = OWN[chosen] ? own() : text;
  const without = { curl: isBinary && "a tensor has no form in JSON", "curl-binary": isStream && "a stream takes JSON" };
  const titles = [...Object.entries(OWN).map(([key, title]) => [key, title, without[key]]), ...forms.filter((each) => !OWN[each.name]).map((each) => [each.name, each.title, each.unavailable])];
  return html`<${Card} title="The same request" note=${OWN[chosen] ? "as the form is filled in" : "with sample values"} wide tools=${html`<${Copy} text=${shown} />`}>
    <div class="forms" role="group" aria-label="Forms of the request">${titles.map(([key, title, unavailable]) => html`<button type="button" key=${key} aria-pressed=${chosen === key} disabled=${!!unavailable} title=${unavailable} onClick=${() => setChosen(key)}>${title}</button>`)}</div>
    <pre class="code" tabindex="0" aria-label="The request"><code>${shown}</code></pre><//>`;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
