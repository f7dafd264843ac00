// All versions of all models in a table: what each does, and which is the slowest. The server sorts and pages.

import { html, useState, useRef } from "./vendor/preact.js";
import { get } from "./api.js";
import { duration, bytes, load, number, percent, plural } from "./format.js";
import { usePoll, longExecution, Loading, Failure, Empty, Card, State, Quantity, Sparkline, Past, perSecond } from "./parts.js";
import { CallIt, Failed, Refused } from "./troubles.js";

const PAGE = 50, SPAN = 900, STEP = 15, FEW = 6;
const COLUMNS = [
  ["name", "Model"], ["state", "State"], ["device", "Device", "", "wide-only"],
  ["requests_per_s", "Requests", "per second, or in the last minute"], [null, "15 minutes"],
  ["p50_us", "p50"], ["p95_us", "p95", "", "wide-only"], ["p99_us", "p99"],
  ["queue_share", "Queue", "share of the time", "wide-only"], ["batch_size", "Batch", "mean", "wide-only"],
  ["memory_bytes", "Memory", "of its processes and on GPUs", "wide-only"], ["refused", "Refused", "last minute", "wide-only"], ["failures", "Failed", "last minute"],
];
const TEXTS = ["name", "state", "device"];

export function Overview({ server }) {
  const [sort, setSort] = useState("name");
  const [search, setSearch] = useState("");
  const [state, setState] = useState("");
  const [offset, setOffset] = useState(0);
  const past = useRef(new Past());
  const shown = useRef("");
  const { data, error } = usePoll(async () => {
    const found = await get("models", { sort, search, state, offset, limit: PAGE, since: past.current.since });
    const ids = found.rows.map((row) => row.id).join("\n");
    past.current.add(found.history);
    if (ids !== shown.current && shown.current) past.current.latest = 0;  // new rows have no past yet
    shown.current = ids;
    return found;
  }, [sort, search, state, offset]);
  if (!data) return error ? html`<${Failure} error=${error} what="The overview" />` : html`<${Loading} what="the models" />`;
  const choose = (column) => {
    const first = TEXTS.includes(column) ? column : `${column}-down`;
    setSort(sort === first ? (TEXTS.includes(column) ? `${column}-down` : column) : first);
    setOffset(0);
  };
  const slowest = Math.max(...data.rows.map((row) => row.p99_us), 1);
  return html`
    ${error && html`<div class="banner" role="alert">${error.message} What you see is what was last known.</div>`}
    <${Summary} data=${data} server=${server || {}} />
    <div class="filters">
      <input type="search" placeholder="Find a model" aria-label="Find a model" value=${search} onInput=${(event) => { setSearch(event.target.value); setOffset(0); }} />
      <select aria-label="State" value=${state} onChange=${(event) => { setState(event.target.value); setOffset(0); }}>
        <option value="">every state</option>
        ${Object.entries(data.states).sort().map(([name, count]) => html`<option key=${name} value=${name}>${(name === "NONE" ? "not loaded" : name.toLowerCase())} (${count})</option>`)}
      </select>
      <span class="muted grow">Figures of the last minute</span>
      <${Pages} offset=${offset} total=${data.matching} onMove=${setOffset} />
    </div>
    ${!data.total ? html`<${Empty} title="No models yet">Put a model into the repository, or load one on the page <a href="#/repository">Repository</a>.<//>`
    : !data.rows.length ? html`<${Empty} title="No model matches">Try fewer letters, or every state.<//>` : html`
    <div class="scroll card flush" tabindex="0" role="region" aria-label="Models"><table class="models">
      <thead><tr>${COLUMNS.map(([column, title, unit, kind]) => html`
        <th key=${title} scope="col" class=${`${kind || ""}${TEXTS.includes(column) || !column ? "" : " num"}`}
            aria-sort=${sort === column ? "ascending" : sort === `${column}-down` ? "descending" : undefined}>
          ${column ? html`<button class="sort" onClick=${() => choose(column)} title=${unit}>${title}<span aria-hidden="true" class="arrow">${sort === column ? "↑" : sort === `${column}-down` ? "↓" : ""}</span></button>` : title}
        </th>`)}</tr></thead>
      <tbody>${data.rows.map((row) => html`<${Row} key=${row.id} row=${row} isSlowest=${row.id === data.slowest} slowest=${slowest} past=${past.current} now=${data.now} />`)}</tbody>
    </table></div>`}
    <${Below} data=${data} />`;
}

// With few models, or few that match, there is room for how to call one; what went wrong comes with any number.
function Below({ data }) {
  const { data: troubles } = usePoll(() => get("troubles"), [], 2000);
  const isFew = data.matching <= FEW, called = data.rows.find((row) => row.state === "READY");
  if (!troubles || !(isFew || troubles.refused.length || troubles.failed.length)) return null;
  return html`<div class="below">
    ${isFew && called && html`<${CallIt} name=${called.name} />`}
    ${(isFew || !!troubles.refused.length) && html`<${Card} title="Refused" note="bad requests, unknown models, callers without permission, too large or too many"><${Refused} rows=${troubles.refused} model=${true} empty="No request was refused." /><//>`}
    ${(isFew || !!troubles.failed.length) && html`<${Card} title="Failed" note="in the last hour"><${Failed} rows=${troubles.failed} model=${true} empty="No request has failed." /><//>`}</div>`;
}

function Row({ row, isSlowest, slowest, past, now }) {
  const [, values] = past.columns(row.id, now, SPAN, STEP, [perSecond("requests")]);
  const isIdle = !row.requests_per_s;
  const time = (us) => (isIdle || !us ? html`<span class="muted">–</span>` : html`<${Quantity} value=${duration(us)[0]} unit=${duration(us)[1]} />`);
  const memory = bytes(row.memory_bytes);
  return html`<tr class=${isSlowest ? "slowest" : ""}>
    <th scope="row"><a href=${`#/models/${encodeURIComponent(row.name)}`}>${row.name}</a>${row.version != null && html`<span class="version"> ${row.version}</span>`}
      ${isSlowest && html` <span class="tag">slowest</span>`}
      ${row.reason && row.state === "READY" && html`<div class="reason clamp" title=${row.reason}>${row.reason}</div>`}</th>
    <td><${State} state=${row.state} reason=${row.reason} running=${row.running_s} /></td>
    <td class="wide-only">${row.device ? row.device.toUpperCase() : html`<span class="muted">–</span>`}</td>
    <td class="num">${isIdle ? html`<span class="muted">–</span>` : html`<${Quantity} value=${load(row.requests_per_s)[0]} unit=${row.requests_per_s < 1 ? "/min" : "/s"} />`}</td>
    <td><${Sparkline} values=${values} label=${`Requests per second of ${row.name} in the last 15 minutes, at most ${number(Math.max(...values))}`} /></td>
    <td class="num">${time(row.p50_us)}</td>
    <td class="num wide-only">${time(row.p95_us)}</td>
    <td class="num heat"><span class="level" style=${{ width: `${(100 * (isIdle ? 0 : row.p99_us)) / slowest}%` }}></span>${time(row.p99_us)}</td>
    <td class="num wide-only">${isIdle ? html`<span class="muted">–</span>` : html`<${Quantity} value=${percent(row.queue_share)} unit="%" />`}</td>
    <td class="num wide-only">${row.batch_size ? number(row.batch_size) : html`<span class="muted">–</span>`}</td>
    <td class="num wide-only">${row.memory_bytes ? html`<${Quantity} value=${memory[0]} unit=${memory[1]} />` : html`<span class="muted">–</span>`}</td>
    <td class="num wide-only">${row.refused ? number(row.refused) : html`<span class="muted">0</span>`}</td>
    <td class=${`num${row.failures ? " wrong" : ""}`}>${row.failures ? number(row.failures) : html`<span class="muted">0</span>`}</td>
  </tr>`;
}

function Summary({ data, server }) {
  const { states } = data;
  const failed = data.unloadable, [requests, unit] = load(data.requests_per_s);
  const loading = server.phase === "loading" || server.phase === "starting";
  return html`<div class="tiles">
      <div class="tile"><span>Models ready</span><strong>${number(states.READY || 0)}<small> of ${number(data.total)}</small></strong></div>
      <div class="tile"><span>Requests</span><strong>${requests}<small> ${unit}</small></strong></div>
      <div class="tile"><span>Waiting</span><strong>${number(data.queued)}<small> ${plural(data.queued, "request")}</small></strong></div>
      <div class=${`tile${data.refused ? " warm" : ""}`}><span>Refused, last minute</span><strong>${number(data.refused)}<small> ${plural(data.refused, "request")}</small></strong></div>
      <div class=${`tile${data.failures ? " bad" : ""}`}><span>Failed, last minute</span><strong>${number(data.failures)}<small> ${plural(data.failures, "request")}</small></strong></div>
    </div>
    ${loading && html`<div class="banner busy" role="status">Loading ${server.model || "models"}: ${server.loaded} of ${server.total}.
      <progress max=${server.total || 1} value=${server.loaded} aria-label="Loaded models"></progress></div>`}
    ${data.running.map((row) => html`<div class="banner" role="alert" key=${row.id}><a href=${`#/models/${encodeURIComponent(row.name)}`}>${row.name}</a> ${row.version}: ${longExecution(row)}</div>`)}
    ${!!failed.length && html`<div class="banner bad" role="alert"><strong>${failed.length === 1 ? "A model" : `${failed.length} models`} could not be loaded.</strong>
      <ul>${failed.map((row) => html`<li key=${row.id}><a href=${`#/models/${encodeURIComponent(row.name)}`}>${row.name}</a> <span class="muted">${row.reason}</span>${row.hint && html`<div>${row.hint}</div>`}</li>`)}</ul></div>`}`;
}

export const Pages = ({ offset, total, onMove }) => total > PAGE && html`<div class="pages" role="group" aria-label="Pages">
  <button class="small" disabled=${!offset} onClick=${() => onMove(offset - PAGE)} aria-label="Previous page">‹</button>
  <span>${number(offset + 1)}–${number(Math.min(offset + PAGE, total))} of ${number(total)}</span>
  <button class="small" disabled=${offset + PAGE >= total} onClick=${() => onMove(offset + PAGE)} aria-label="Next page">›</button></div>`;
