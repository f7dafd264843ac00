// Recent traces: where each request, and those that its model made, spent its time.

import { html, useState } from "./vendor/preact.js";
import { get, change } from "./api.js";
import { clock, durationText, number } from "./format.js";
import { usePoll, Loading, Failure, Empty, Card } from "./parts.js";

// Between these events, by Triton's names.
const SPANS = [
  ["receive", "HTTP_RECV_START", "HTTP_RECV_END"], ["receive", "GRPC_WAITREAD_START", "GRPC_WAITREAD_END"],
  ["queue", "QUEUE_START", "COMPUTE_START"], ["input", "COMPUTE_START", "COMPUTE_INPUT_END"],
  ["compute", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"], ["output", "COMPUTE_OUTPUT_START", "COMPUTE_END"],
  ["send", "HTTP_SEND_START", "HTTP_SEND_END"], ["send", "GRPC_SEND_START", "GRPC_SEND_END"],
];
const NAMES = ["receive", "queue", "input", "compute", "output", "send"];

export function Traces() {
  const [refusal, setRefusal] = useState(null);
  const { data, error } = usePoll(() => get("traces"), [], 1500);
  if (!data) return error ? html`<${Failure} error=${error} what="Traces" />` : html`<${Loading} what="traces" />`;
  // A count of -1 is without an end.
  const left = +data.settings.trace_count, isOn = !data.settings.trace_level.includes("OFF") && left !== 0, every = +data.settings.trace_rate;
  // One that is much longer than the others is cut, so that those can be compared.
  const ends = data.traces.map(endOf).sort((a, b) => a - b), longest = ends[Math.ceil(0.9 * (ends.length - 1))] || 1;
  const set = async (settings) => {
    try { await change("traces/settings", settings); setRefusal(null); } catch (error) {
      setRefusal(error);
      if (error.status === 401) window.dispatchEvent(new Event("token-needed"));
    }
  };
  return html`
    <div class="title"><h1>Traces</h1><span class="muted">${isOn ? `${every === 1 ? "every request" : `one of ${number(every)} requests`} is traced${left > 0 ? `, ${number(left)} left` : ""}` : "no requests are traced now"}</span></div>
    ${refusal && html`<div class="banner bad" role="alert">${refusal.message} ${refusal.hint || ""}</div>`}
    <div class="filters">
      ${isOn ? html`<button onClick=${() => set({ trace_level: ["OFF"] })}>Stop tracing</button>` : html`
        <button class="main" onClick=${() => set({ trace_level: ["TIMESTAMPS"], trace_rate: "1", trace_count: "20" })}>Trace the next 20 requests</button>
        <button onClick=${() => set({ trace_level: ["TIMESTAMPS"], trace_rate: "1000", trace_count: "-1" })}>One of 1,000 from now on</button>`}
      <span class="grow"></span><p class="legend">${NAMES.map((each) => html`<span key=${each}><i class=${`phase ${each}`}></i>${each}</span>`)}<span><i class="phase whole"></i>between these</span><span><i class="way"></i>in the front end</span></p>
    </div>
    ${!!data.traces.length && html`<p class="muted">All bars have one scale, on which an arrow marks what is cut. The time in a heading runs from the first byte of the request to the last byte of its answer; the time beside a bar is that in the model, from its queue to its answer.</p>`}
    ${!data.traces.length ? html`<${Empty} title="No traces yet">Trace the next requests, and send some: for example on a model's page <em>Try it</em>.<//>`
    : data.traces.map((family) => html`<${Trace} key=${family[0].number} family=${family} longest=${longest} />`)}`;
}

const endOf = (family) => Math.max(...family.flatMap((each) => each.events.map(([, ns]) => ns)), 1);

function Trace({ family, longest }) {
  const [first] = family, end = endOf(family);
  return html`<${Card} title=${first.model} note=${[`version ${first.version}`, clock(first.began), first.request_id && `id ${first.request_id}`, durationText(end / 1000)].filter(Boolean).join(" · ")} wide>
    <div class="trace">${family.map((each) => html`<${Lane} key=${each.number} record=${each} end=${end} longest=${longest} />`)}</div><//>`;
}

function Lane({ record, end, longest }) {
  const at = Object.fromEntries(record.events);
  const spans = SPANS.filter(([, from, to]) => at[from] != null && at[to] != null).map(([name, from, to]) => [name, at[from], at[to] - at[from]]);
  const whole = [at.REQUEST_START ?? 0, at.REQUEST_END ?? end];
  const said = spans.map(([name, , ns]) => `${name} ${durationText(ns / 1000)}`).join(", ");
  return html`<div class="lane"><span class="name" style=${{ paddingLeft: `${record.depth * 14}px` }}>${record.depth ? record.model : "request"}</span>
    <div class=${`track${(record.depth ? whole[1] : end) > longest ? " cut" : ""}`} role="img" aria-label=${said} title=${said}>${!record.depth && html`<span class="way" style=${{ left: 0, width: `${(100 * end) / longest}%` }}></span>`}
      <span class="whole" style=${{ left: `${(100 * whole[0]) / longest}%`, width: `max(2px, ${(100 * (whole[1] - whole[0])) / longest}%)` }}></span>
      ${spans.map(([name, from, ns], i) => html`<span key=${i} class=${`phase ${name}`} style=${{ left: `${(100 * from) / longest}%`, width: `max(2px, ${(100 * ns) / longest}%)` }}></span>`)}</div>
    <span class="num">${durationText((whole[1] - whole[0]) / 1000)}</span></div>`;
}
