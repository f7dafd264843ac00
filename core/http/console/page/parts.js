// What all views share: hooks that ask the server, states of waiting and failing, small pieces of the page.

import { html, useState, useEffect, useRef, useLayoutEffect } from "./vendor/preact.js";
import { age, counted } from "./format.js";

// The answer of `question`, asked again every `ms` while the page is looked at; `deps` begin anew.
export function usePoll(question, deps, ms = 1000) {
  const [state, setState] = useState({ data: null, error: null });
  useEffect(() => {
    let timer, over = false;
    const turn = async () => {
      if (!document.hidden) {
        try {
          const data = await question();
          if (!over) setState({ data, error: null });
        } catch (error) {
          if (!over) setState((before) => ({ data: before.data, error }));
          if (error.status === 401) window.dispatchEvent(new Event("token-needed"));
        }
      }
      if (!over && ms) timer = setTimeout(turn, ms);
    };
    setState({ data: null, error: null });
    turn();
    const again = () => { if (!document.hidden) { clearTimeout(timer); turn(); } };
    window.addEventListener("token-given", again);
    return () => { over = true; clearTimeout(timer); window.removeEventListener("token-given", again); };
  }, deps);
  return state;
}

export const Loading = ({ what }) => html`
  <div class="state" role="status"><span class="pulse" aria-hidden="true"></span>Loading ${what}…</div>`;

export function Failure({ error, what }) {
  if (error.status === 401) return html`<div class="state">A token is needed to see ${what}.</div>`;
  return html`<div class="state failure" role="alert"><strong>${what} cannot be shown.</strong>
    <span>${error.message}</span>${error.hint && html`<span class="muted">${error.hint}</span>`}</div>`;
}

export const Empty = ({ title, children }) => html`
  <div class="state"><strong>${title}</strong><span class="muted">${children}</span></div>`;

export const Card = ({ title, note, children, wide, tools }) => html`
  <section class=${`card${wide ? " wide" : ""}`} aria-label=${title}>
    <header><h2>${title}</h2>${note && html`<span class="muted">${note}</span>`}${tools && html`<div class="tools">${tools}</div>`}</header>
    ${children}
  </section>`;

const STATES = { READY: "good", LOADING: "busy", UNLOADING: "busy", UNAVAILABLE: "bad" };

// A version that does not serve although nothing is wrong with it: what is said in the place of its state.
export const calm = ({ reason }) => (!reason ? "" : reason === "unloaded" ? reason : reason.startsWith("REGISTERED") ? "registered" : "");

// `running`: for how many seconds an execution has run, if that is long.
export const State = ({ state, reason, running }) => (calm({ reason })
  ? html`<span class="pill" title=${reason}>${calm({ reason })}</span>`
  : running
  ? html`<span class="pill busy" title=${`An execution has run for ${age(running)}.`}>executing ${age(running)}</span>`
  : html`<span class=${`pill ${STATES[state] || ""}`}>${(state || "not loaded").toLowerCase()}</span>`);

// What is known of an execution that does not end.
export const longExecution = (row) => `An execution has run for ${age(row.running_s)}${row.queued ? `, and ${counted(row.queued, "request")} ${row.queued === 1 ? "waits" : "wait"} behind it` : ""}. The log names its instance and its requests.`;

// A number and its unit, apart, so that columns line up.
export const Quantity = ({ value, unit }) => html`<span class="quantity">${value}${unit && html`<span class="unit"> ${unit}</span>`}</span>`;

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // not a secure context: http on another machine
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button class="small" onClick=${copy} aria-live="polite">${done ? "Copied" : label}</button>`;
}

export const Bars = ({ rows, unit = "", label }) => {
  const most = Math.max(...rows.map(([, value]) => value), 1e-12);
  return html`<table class="bars" aria-label=${label}><tbody>${rows.map(([name, value, text, best]) => html`
    <tr key=${name} class=${best ? "best" : ""}><th scope="row">${name}</th>
      <td class="track"><span class="bar" style=${{ width: `${(100 * Math.max(value, 0)) / most}%` }}></span></td>
      <td class="num">${text ?? value}${unit && html`<span class="unit"> ${unit}</span>`}</td></tr>`)}</tbody></table>`;
};

// Where the time of one request went.
export const PHASES = [["queue", "queue"], ["compute_input", "input"], ["compute_infer", "compute"], ["compute_output", "output"]];

export function Sparkline({ values, label, width = 96, height = 24 }) {
  const canvas = useRef();
  useLayoutEffect(() => {
    const scale = devicePixelRatio || 1, on = canvas.current, context = on.getContext("2d");
    on.width = width * scale; on.height = height * scale;
    context.scale(scale, scale);
    const most = Math.max(...values, 1e-9), step = width / Math.max(values.length - 1, 1);
    const style = getComputedStyle(document.documentElement);
    const y = (value) => height - 2 - (value / most) * (height - 4);
    context.beginPath();
    values.forEach((value, i) => context.lineTo(i * step, y(value)));
    context.strokeStyle = style.getPropertyValue("--accent");
    context.lineWidth = 1.5;
    context.stroke();
    context.lineTo(width, height); context.lineTo(0, height);
    context.fillStyle = style.getPropertyValue("--accent-faint");
    context.fill();
  });
  return html`<canvas class="spark" ref=${canvas} role="img" aria-label=${label} style=${{ width: `${width}px`, height: `${height}px` }}></canvas>`;
}

// Keys to which the newest points are added; seconds in which nothing happened are not sent.
export class Past {
  constructor() { this.versions = new Map(); this.latest = 0; }

  add(history) {
    for (const [id, columns] of Object.entries(history)) {
      if (!this.versions.has(id)) this.versions.set(id, new Map());
      const points = this.versions.get(id);
      columns.seconds.forEach((second, i) => {
        points.set(second, Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[i]])));
        this.latest = Math.max(this.latest, second);
      });
    }
  }

  // The last `span` seconds before `now`, in whole steps of `step` seconds: one array for each of `columns`.
  columns(id, now, span, step, columns) {
    const points = this.versions.get(id) || new Map(), end = step * Math.floor(now / step), begin = end - span;
    for (const second of points.keys()) if (second < end - 1000) points.delete(second);
    const seconds = [], made = columns.map(() => []);
    for (let at = begin + step; at <= end; at += step) {
      const within = [];
      for (let second = at - step + 1; second <= at; second += 1) if (points.has(second)) within.push(points.get(second));
      seconds.push(at);
      columns.forEach((column, i) => made[i].push(column(within, step)));
    }
    return [seconds, ...made];
  }

  // Ask again for the last seconds: another engine may have been late with them.
  get since() { return Math.max(0, this.latest - 2); }
}

export const perSecond = (name) => (within, step) => within.reduce((sum, point) => sum + point[name], 0) / step;
export const highest = (name) => (within) => {
  const values = within.map((point) => point[name]).filter(Boolean);
  return values.length ? Math.max(...values) : null;
};
export const mean = (name, of = "requests") => (within) => {
  const count = within.reduce((sum, point) => sum + point[of], 0);
  return count ? within.reduce((sum, point) => sum + point[name], 0) / count : null;
};
