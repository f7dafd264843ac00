// Models on demand: how many are in memory, what the loads cost their first requests, what was let go and why.

import { html } from "./vendor/preact.js";
import { get } from "./api.js";
import { age, bytes, clock, durationText, number, plural } from "./format.js";
import { Card, Failure, Loading, Quantity, usePoll } from "./parts.js";

const NONE = html`<span class="muted">–</span>`;
const size = (value) => html`<${Quantity} value=${bytes(value)[0]} unit=${bytes(value)[1]} />`;
const link = (name) => html`<a href=${`#/models/${encodeURIComponent(name)}`}>${name}</a>`;

export function Demand() {
  const { data, error } = usePoll(() => get("demand"), [], 2000);
  if (!data) return error ? html`<${Failure} error=${error} what="What is in memory" />` : html`<${Loading} what="what is in memory" />`;
  const [used, unit] = bytes(data.resident_bytes);
  const excess = data.budget_bytes ? data.resident_bytes - data.budget_bytes : 0;
  const held = data.models.filter((each) => each.is_resident).sort((a, b) => b.bytes - a.bytes).slice(0, 3);
  return html`
    ${excess > 0 && html`<div class="banner" role="alert">Models take ${bytes(excess).join(" ")} more than their budget, and are in use or pinned. No other is loaded until that changes. The largest: ${held.map((each) => `${each.model} ${bytes(each.bytes).join(" ")}`).join(", ")}.</div>`}
    ${error && html`<div class="banner" role="alert">${error.message} What you see is what was last known.</div>`}
    <div class="tiles">
      <div class="tile"><span>Models in memory</span><strong>${number(data.resident)}<small> of ${number(data.registered)}</small></strong></div>
      <div class="tile"><span>Memory of models</span><strong>${used}<small> ${unit} of ${bytes(data.budget_bytes).join(" ")}</small></strong></div>
      <div class="tile"><span>Loads, last minute</span><strong>${number(data.loads)}<small> ${plural(data.loads, "model")}</small></strong></div>
      <div class="tile"><span>Waiting for a load</span><strong>${number(data.waiting)}<small> ${plural(data.waiting, "request")}</small></strong></div>
    </div>
    <${Card} title="Models" note="in memory, or loaded for requests since the start; the most waiting first">
      ${!data.models.length ? html`<p class="muted quiet">Nothing has asked for a model yet.</p>` : html`
      <div class="scroll tall" tabindex="0" role="region" aria-label="Cold starts"><table class="index">
        <thead><tr><th scope="col">Model</th><th scope="col">State</th><th scope="col" class="num wide-only">Memory</th><th scope="col" class="num wide-only">Idle for</th><th scope="col" class="num">Cold starts</th><th scope="col" class="num">Last</th><th scope="col" class="num wide-only">Mean</th></tr></thead>
        <tbody>${data.models.map((each) => html`<tr key=${each.model}>
          <th scope="row">${link(each.model)}</th>
          <td><span class=${`pill${each.is_resident ? " good" : ""}`}>${each.is_resident ? "in memory" : "registered"}</span>${each.is_pinned && html` <span class="tag calm">pinned</span>`}</td>
          <td class="num wide-only">${each.is_resident ? size(each.bytes) : NONE}</td>
          <td class="num wide-only">${each.is_resident ? age(each.rested_s) : NONE}</td>
          <td class="num cold">${number(each.cold_starts)}</td>
          <td class="num">${each.cold_starts ? durationText(1e6 * each.last_cold_s) : NONE}</td>
          <td class="num wide-only">${each.cold_starts ? durationText((1e6 * each.cold_seconds) / each.cold_starts) : NONE}</td></tr>`)}</tbody></table></div>`}<//>
    <${Card} title="Let go" note="the last 100">
      ${!data.let_go.length ? html`<p class="muted quiet">No model was let go.</p>` : html`
      <div class="scroll tall" tabindex="0" role="region" aria-label="Models that were let go"><table class="requests">
        <thead><tr><th scope="col">Time</th><th scope="col">Model</th><th scope="col" class="num">Memory</th><th scope="col">Why</th></tr></thead>
        <tbody>${data.let_go.map((each, i) => html`<tr key=${data.let_go.length - i}><td>${clock(each.at)}</td><td class="id">${link(each.model)}</td><td class="num">${size(each.bytes)}</td><td>${each.text}</td></tr>`)}</tbody></table></div>`}<//>`;
}
