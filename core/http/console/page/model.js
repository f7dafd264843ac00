// One model: its load, a form to try it, its configuration, and the requests that stood out.

import { html, useState, useRef } from "./vendor/preact.js";
import { get } from "./api.js";
import { duration, durationText, load, number, bytes } from "./format.js";
import { usePoll, calm, longExecution, Loading, Failure, Empty, Card, State, Quantity, Bars, Past, PHASES, perSecond, highest, mean } from "./parts.js";
import { Plot } from "./plot.js";
import { Failed, Refused, time } from "./troubles.js";
import { TryIt } from "./try.js";

const TABS = [["load", "Load"], ["try", "Try it"], ["configuration", "Configuration"], ["requests", "Requests"]];
// [seconds, steps of plots, steps of means: long enough for some requests where there are few, what it is called]
const SPANS = [[120, 1, 5, "2 min"], [900, 5, 30, "15 min"]];
const STEP_COLOURS = ["--phase-compute", "--phase-queue", "--phase-input", "--phase-output", "--phase-send", "--third", "--second", "--accent"];

export function Model({ name, tab, theme }) {
  const past = useRef(new Past());
  const [chosen, setChosen] = useState(null);
  const { data, error } = usePoll(async () => {
    const found = await get("model", { name, since: past.current.since });
    past.current.add(found.history);
    return found;
  }, [name]);
  const address = (view) => `#/models/${encodeURIComponent(name)}/${view}`;
  const versions = data?.versions || [];
  const serving = versions.filter((each) => each.state === "READY");
  const row = versions.find((each) => each.version === chosen) || serving[serving.length - 1] || versions[0];
  return html`
    <p class="crumbs"><a href="#/">Overview</a> <span aria-hidden="true">/</span> <span aria-current="page">${name}</span></p>
    <div class="title"><h1>${name}</h1>${row && html`<${State} state=${row.state} reason=${row.reason} running=${row.running_s} />`}
      ${row?.execution_provider && html`<span class="muted">${[row.backend, row.device.toUpperCase(), row.execution_provider].filter(Boolean).join(" · ")}</span>`}
      ${versions.length > 1 && html`<label class="inline">Version <select value=${row.version} onChange=${(event) => setChosen(+event.target.value)}>
        ${versions.map((each) => html`<option key=${each.version} value=${each.version}>${each.version} (${each.state.toLowerCase()})</option>`)}</select></label>`}</div>
    <nav class="tabs" aria-label="Views of the model">${TABS.map(([view, title]) => html`<a key=${view} href=${address(view)} aria-current=${tab === view ? "page" : undefined}>${title}</a>`)}</nav>
    ${row?.reason && html`<div class=${`banner${calm(row) ? "" : " bad"}`} role="alert"><strong>${row.state === "READY" ? "The last load failed; the version before it serves." : "This version does not serve."}</strong> <span>${row.reason}</span>${row.hint && html`<div class="muted">${row.hint}</div>`}</div>`}
    ${!!row?.running_s && html`<div class="banner" role="alert">${longExecution(row)}</div>`}
    ${!data ? (error ? html`<${Failure} error=${error} what="This model" />` : html`<${Loading} what=${name} />`)
    : tab === "load" ? html`<${Load} data=${data} row=${row} past=${past.current} theme=${theme} />`
    : tab === "try" ? html`<${TryIt} name=${name} row=${row} />`
    : tab === "configuration" ? html`<${Configuration} name=${name} row=${row} versions=${versions} />`
    : html`<${Requests} name=${name} version=${row.version} />`}`;
}

function Load({ data, row, past, theme }) {
  const [span, setSpan] = useState(0);
  const [seconds, step, long] = SPANS[span], [requests, unit] = load(row.requests_per_s);
  const of = (...columns) => past.columns(row.id, data.now, seconds, step, columns);
  const statistics = data.statistics.find((each) => each.version === String(row.version));
  const parts = data.steps.length ? ofSteps(data, row, past, seconds, long)
    : { lines: [["queue", "--phase-queue"], ["input", "--phase-input"], ["compute", "--phase-compute"], ["output", "--phase-output"]], data: past.columns(row.id, data.now, seconds, long, ["queue_us", "input_us", "infer_us", "output_us"].map((each) => mean(each))) };
  const [spent] = past.columns(row.id, data.now, seconds, long, [mean("request_us")]).slice(1);
  const rest = spent.map((us, i) => (us == null ? null : Math.max(0, us - parts.data.slice(1).reduce((sum, values) => sum + (values[i] || 0), 0))));
  const highestOf = (name) => (within) => within.reduce((most, point) => Math.max(most, point[name]), 0);
  const idle = !past.versions.get(row.id)?.size;
  const hasCache = statistics && (statistics.inference_stats.cache_hit.count || statistics.inference_stats.cache_miss.count);
  const us = (value) => durationText(value);
  return html`
    <div class="tiles">
      <${Tile} title="Requests" value=${requests} unit=${unit} />
      <${Tile} title="Median" value=${row.p50_us ? duration(row.p50_us)[0] : "–"} unit=${row.p50_us ? duration(row.p50_us)[1] : ""} />
      <${Tile} title="99 of 100 within" value=${row.p99_us ? duration(row.p99_us)[0] : "–"} unit=${row.p99_us ? duration(row.p99_us)[1] : ""} />
      <${Tile} title="Refused, last minute" value=${number(row.refused)} />
      <${Tile} title="Failed, last minute" value=${number(row.failures)} bad=${row.failures} />
      ${row.memory_bytes ? html`<${Tile} title="Memory" value=${bytes(row.memory_bytes)[0]} unit=${bytes(row.memory_bytes)[1]} />` : ""}
      ${row.restarts ? html`<${Tile} title="Restarts of its processes" value=${row.restarts} bad=${true} />` : ""}
      ${row.sequences ? html`<${Tile} title="Sequences" value=${row.sequences[0]} unit=${`of ${row.sequences[1]} slots, ${row.sequences[2]} wait`} />` : ""}
    </div>
    <div class="filters"><span class="muted grow">${idle ? "Nothing was asked of this version in the last 15 minutes." : ""}</span>
      <div class="switch" role="group" aria-label="Time shown">${SPANS.map(([, , , text], i) => html`<button key=${text} aria-pressed=${span === i} onClick=${() => setSpan(i)}>${text}</button>`)}</div></div>
    <div class="grid" key=${span}>
      <${Card} title="Requests per second"><${Plot} title="Requests per second" theme=${theme} data=${of(perSecond("requests"), highest("failures"))} lines=${[["answered", "--accent"], ["failed", "--bad"]]} /><//>
      <${Card} title="Latency" note="from the request to its answer, on a logarithmic axis"><${Plot} title="Latency" log theme=${theme} text=${us} data=${of(highest("p50_us"), highest("p95_us"), highest("p99_us"))} lines=${[["p50", "--accent"], ["p95", "--second"], ["p99", "--third"]]} /><//>
      <${Card} title="Where the time goes" note=${data.steps.length ? "shares of a request by step, each with the mean of its model" : "shares of a request; its receiving and sending are in Traces"}><${Plot} title="Where the time goes" stacked theme=${theme} text=${us} data=${[...parts.data, rest]} lines=${[...parts.lines, ["other", "--phase-other"]]} /><//>
      <${Card} title="Waiting requests"><${Plot} title="Waiting requests" whole theme=${theme} data=${of(highestOf("queued"))} lines=${[["in the queue", "--accent"]]} /><//>
      ${hasCache ? html`<${Card} title="Response cache"><${Plot} title="Response cache" theme=${theme} data=${of(perSecond("cache_hits"), perSecond("cache_misses"))} lines=${[["hits per second", "--accent"], ["misses", "--third"]]} /><//>` : ""}
      ${row.sequences ? html`<${Card} title="Sequences" note=${`of ${row.sequences[1]} slots`}><${Plot} title="Sequences" whole theme=${theme} data=${of(slots(row.sequences[0]))} lines=${[["in a slot", "--accent"]]} /><//>` : ""}
      ${row.backend === "python" ? html`<${Card} title="Restarts of its processes"><${Plot} title="Restarts of its processes" whole theme=${theme} data=${of((within) => within.reduce((sum, point) => sum + point.restarts, 0))} lines=${[["restarts", "--bad"]]} /><//>` : ""}
      <${Card} title="Batch sizes" note="executions since the load"><${Batches} statistics=${statistics} /><//>
      ${!data.steps.length && html`<${Card} title="Why batches closed" note="executions since the load"><${Closes} statistics=${statistics} /><//>`}
    </div>`;
}

// The steps of an ensemble, each by the version of its model that answered last.
function ofSteps(data, row, past, seconds, step) {
  const columns = data.steps.map((name) => {
    const ids = [...past.versions.keys()].filter((id) => id.slice(0, id.lastIndexOf("/")) === name);
    const all = ids.map((id) => past.columns(id, data.now, seconds, step, [mean("request_us")])[1]);
    return all.length ? all[0].map((_, i) => all.map((values) => values[i]).findLast((us) => us != null) ?? null) : null;
  });
  const [times, spent] = past.columns(row.id, data.now, seconds, step, [mean("request_us")]);
  const filled = columns.map((values) => times.map((_, i) => (spent[i] == null ? null : values?.[i] ?? 0)));
  return { lines: data.steps.map((name, i) => [name, STEP_COLOURS[i % STEP_COLOURS.length]]), data: [times, ...filled] };
}

// Only changes are noted: between them the number stays, and after the last one it is the present one.
function slots(now) {
  let held = null;
  return (within) => {
    if (!within.length) return held ?? now;
    held = within[within.length - 1].sequences;
    return Math.max(...within.map((point) => point.sequences));
  };
}

const Tile = ({ title, value, unit, bad }) => html`<div class=${`tile${bad ? " bad" : ""}`}><span>${title}</span><strong>${value}${unit && html`<small> ${unit}</small>`}</strong></div>`;

const NOTHING = html`<p class="muted quiet">Nothing has been executed yet.</p>`;

function Batches({ statistics }) {
  const rows = (statistics?.batch_stats || []).map((each) => [String(each.batch_size), each.compute_infer.count, number(each.compute_infer.count)]);
  return rows.length ? html`<div class="short"><${Bars} rows=${rows} label="Executions by batch size" /></div>` : NOTHING;
}

const REASONS = {
  full: "the batch was full", preferred: "a preferred size was reached", delay: "the longest wait was over", idle: "an instance was free",
};

function Closes({ statistics }) {
  const rows = Object.entries(statistics?.batch_close_count || {}).filter(([, count]) => count).sort(([, a], [, b]) => b - a)
    .map(([reason, count]) => [REASONS[reason.toLowerCase()] || reason, count, number(count)]);
  return rows.length ? html`<${Bars} rows=${rows} label="Executions by the reason for which the batch was closed" />` : NOTHING;
}

// --- the configuration

function Configuration({ name, row, versions }) {
  const [all, setAll] = useState(false);
  const { data, error } = usePoll(() => (row.state === "READY" ? get("configuration", { name, version: row.version }) : null), [name, row.version, row.state], 0);
  const failed = html`<${Versions} versions=${versions} />`;
  if (row.state !== "READY") return html`<${Empty} title="No configuration">It is known for a version that serves.<//>${failed}`;
  if (!data) return error ? html`<${Failure} error=${error} what="The configuration" />` : html`<${Loading} what="the configuration" />`;
  const written = new Map(flat(data.written || {}));
  const lines = flat(data.in_force).map(([path, value]) => [path, value, data.written && String(written.get(path) ?? "") !== String(value)]);
  const shown = lines.filter(([, value, isCompleted]) => all || !["", "0", "false", "FORMAT_NONE", "PRIORITY_DEFAULT"].includes(String(value)));
  return html`
    ${!!data.without_effect.length && html`<div class="banner" role="status"><strong>${data.without_effect.length === 1 ? "One setting has" : `${data.without_effect.length} settings have`} no effect here.</strong>
      <ul>${data.without_effect.map((each) => html`<li key=${each.path}><code>${each.path}</code>: ${each.message} ${each.hint}</li>`)}</ul></div>`}
    <${Card} title="In force" note=${data.written ? "settings with a mark were completed by the server" : ""} tools=${html`<label class="inline"><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} /> every setting</label>`}>
      <table class="settings paths"><tbody>${shown.map(([path, value, isCompleted]) => html`<tr key=${path} class=${isCompleted ? "completed" : ""}>
        <th scope="row"><code>${path}</code></th><td>${String(value)}</td><td>${isCompleted && html`<span class="tag calm">completed</span>`}</td></tr>`)}</tbody></table><//>
    ${failed}`;
}

const Versions = ({ versions }) => html`<${Card} title="Versions"><table class="settings"><tbody>${versions.map((each) => html`
  <tr key=${each.version}><th scope="row">${each.version ?? "–"}</th><td><${State} state=${each.state} /></td><td>${each.reason || html`<span class="muted">loaded in ${number(each.load_seconds)} s</span>`}</td></tr>`)}</tbody></table><//>`;

function flat(value, path = "") {
  if (Array.isArray(value)) {
    if (value.every((each) => typeof each !== "object")) return value.length ? [[path, value.join(", ")]] : [];
    return value.flatMap((each, i) => flat(each, `${path}[${i}]`));
  }
  if (value && typeof value === "object") return Object.entries(value).flatMap(([key, each]) => flat(each, path ? `${path}.${key}` : key));
  return [[path, value]];
}

// --- the requests that stood out

function Requests({ name, version }) {
  const { data, error } = usePoll(() => get("requests", { name }), [name], 3000);
  if (!data) return error ? html`<${Failure} error=${error} what="The requests" />` : html`<${Loading} what="the requests" />`;
  const found = data.versions.find((each) => each.version === String(version)) || { slowest: [], failed: [] };
  const most = Math.max(...found.slowest.map((each) => each.duration_us), 1);
  return html`
    <${Card} title="The slowest" note="of the last hour" wide>
      <p class="legend">${PHASES.map(([, text]) => html`<span key=${text}><i class=${`phase ${text}`}></i>${text}</span>`)}<span><i class="phase other"></i>other</span></p>
      ${found.slowest.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="The slowest requests"><table class="requests"><thead><tr><th scope="col">Ended</th><th scope="col">Id</th><th scope="col" class="num">Batch</th><th scope="col" class="num">Took</th><th scope="col">Where the time went</th></tr></thead>
      <tbody>${found.slowest.map((each) => html`<tr key=${`${each.ended}${each.id}${each.duration_us}`}><td>${time(each.ended)}</td><td class=${`id${each.id ? "" : " hide-phone"}`}>${each.id || html`<span class="muted">–</span>`}</td><td class="num batch">${each.batch_size || "–"}</td>
        <td class="num"><${Quantity} value=${duration(each.duration_us)[0]} unit=${duration(each.duration_us)[1]} /></td><td><${Waterfall} request=${each} most=${most} /></td></tr>`)}</tbody></table></div>` : html`<p class="muted quiet">No request was answered in the last hour.</p>`}<//>
    <${Card} title="Failed" note="in the last hour" wide>
      <${Failed} rows=${found.failed} empty="No request has failed." /><//>
    <${Card} title="Refused" note="bad requests for this model, or from callers without permission" wide><${Refused} rows=${data.refused} empty="No request was refused." /><//>`;
}

function Waterfall({ request, most }) {
  const parts = PHASES.map(([field, text]) => [text, request[`${field}_us`] || 0]);
  const known = parts.reduce((sum, [, us]) => sum + us, 0);
  parts.push(["other", Math.max(0, request.duration_us - known)]);
  const said = parts.filter(([, us]) => us).map(([text, us]) => `${text} ${durationText(us)}`).join(", ");
  return html`<div class="waterfall" role="img" aria-label=${said} title=${said}>${parts.map(([text, us]) => html`<span key=${text} class=${`phase ${text}`} style=${{ width: `${(100 * us) / most}%` }}></span>`)}</div>`;
}
