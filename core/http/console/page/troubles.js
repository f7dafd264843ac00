// Requests that were refused or failed, and how a model is called: what a person looks for when nothing arrives.

import { html, useState, useEffect } from "./vendor/preact.js";
import { ask, modelPath } from "./api.js";
import { clock, duration } from "./format.js";
import { Card, Copy, Quantity } from "./parts.js";

const NONE = html`<span class="muted">–</span>`;

// `model`: the column of the model, which one model's page leaves out.
export const Refused = ({ rows, model, empty }) => (!rows.length ? html`<p class="muted quiet">${empty}</p>` : html`
  <div class="scroll tall" tabindex="0" role="region" aria-label="Refused requests"><table class="requests">
    <thead><tr><th scope="col">Time</th><th scope="col">Status</th>${model && html`<th scope="col">Model</th>`}<th scope="col">Request</th><th scope="col">Error</th></tr></thead>
    <tbody>${rows.map((each, i) => html`<tr key=${i}><td>${clock(each.at)}</td>
      <td>${each.status}${each.count > 1 && html` <span class="muted">${each.count} times</span>`}</td>${model && html`<td class="id">${each.model || NONE}</td>`}
      <td class="path"><code>${each.path}</code></td><td class="error">${each.hint && html`<div><strong>${each.hint}</strong></div>`}<span class=${each.hint ? "muted" : ""}>${each.text}</span></td></tr>`)}</tbody></table></div>`);

export const Failed = ({ rows, model, empty }) => (!rows.length ? html`<p class="muted quiet">${empty}</p>` : html`
  <div class="scroll tall" tabindex="0" role="region" aria-label="Failed requests"><table class="requests">
    <thead><tr><th scope="col">Ended</th><th scope="col">Reason</th>${model && html`<th scope="col">Model</th>`}<th scope="col">Id</th><th scope="col" class="num">After</th><th scope="col">Error</th></tr></thead>
    <tbody>${rows.map((each, i) => html`<tr key=${i}><td>${time(each.ended)}</td><td>${each.status}</td>${model && html`<td class="id"><a href=${`#/models/${encodeURIComponent(each.model)}/requests`}>${each.model}</a></td>`}
      <td class=${`id${each.id ? "" : " hide-phone"}`}>${each.id || NONE}</td><td class="num"><${Quantity} value=${duration(each.duration_us)[0]} unit=${duration(each.duration_us)[1]} /></td><td class="error">${said(each)}</td></tr>`)}</tbody></table></div>`);

// A request that its caller has given up was answered by nothing.
const said = ({ error, status }) => error?.replace(/^\[request id: [^\]]*\] /, "") ?? (status === "CANCELED" ? "the caller went away" : "");

// The local time of a text like 2026-01-31T23:59:59.123Z.
export const time = (text) => clock(Date.parse(text) / 1000);

const WAYS = [["curl", "curl"], ["python", "Python"], ["http", "tritonclient"]];
const MOST = 64;

// A request to `name` with sample values, in the forms of those who call a model.
export function CallIt({ name }) {
  const [way, setWay] = useState("curl");
  const [text, setText] = useState("");
  useEffect(() => {
    let over = false;
    const sample = ask(`${modelPath(name)}/request${way === "python" ? "" : `?form=${way}`}`);
    sample.then((response) => (way === "python" ? response.json().then(python) : response.text())).then((found) => { if (!over) setText(found); }, (refusal) => { if (!over) setText(refusal.message); });
    return () => { over = true; };
  }, [name, way]);
  return html`<${Card} title="Call it" note=${name} tools=${html`<${Copy} text=${text} />`}>
    <div class="forms" role="group" aria-label="Ways to call it">${WAYS.map(([key, title]) => html`<button type="button" key=${key} aria-pressed=${way === key} onClick=${() => setWay(key)}>${title}</button>`)}</div>
    <pre class="code" tabindex="0" aria-label="A request"><code>${text}</code></pre>
    <p class="muted">Or fill in the form on its page: <a href=${`#/models/${encodeURIComponent(name)}/try`}>Try it</a>.</p><//>`;
}

// With what Python has itself.
function python(sample) {
  const address = new URL(sample.path.slice(1), location.href.split("#")[0].replace(/console\/?$/, ""));
  const inputs = sample.inputs.map(({ name, datatype, shape, value }) => {
    const size = shape.reduce((product, each) => product * each, 1), text = typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
    const data = size <= MOST ? `[${Array(size).fill(text).join(", ")}]` : `[${text}] * ${size}`;
    return `    {"name": ${JSON.stringify(name)}, "datatype": "${datatype}", "shape": ${JSON.stringify(shape)}, "data": ${data}},`;
  });
  return ["import json", "from urllib.request import urlopen", "", "inputs = [", ...inputs, "]", `with urlopen(${JSON.stringify(address.href)}, json.dumps({"inputs": inputs}).encode()) as answer:`, "    print(json.load(answer))"].join("\n");
}
