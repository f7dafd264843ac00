// The last lines of the log of all processes of the server, and what it logs from now on.

import { html, useState, useRef } from "./vendor/preact.js";
import { get, change } from "./api.js";
import { usePoll, Loading, Failure, Empty } from "./parts.js";

const MOST = 1000;

export function Log() {
  const [level, setLevel] = useState("");
  const [model, setModel] = useState("");
  const [text, setText] = useState("");
  const [refusal, setRefusal] = useState(null);
  const lines = useRef({ end: 0, events: [] });
  const { data, error } = usePoll(async () => {
    const of = JSON.stringify([level, model, text]);
    if (lines.current.of !== of) lines.current = { end: 0, events: [], of };
    const kept = lines.current;  // an answer that comes when another filter is set is not for that
    const found = await get("log", { level, model, text, after: kept.end });
    kept.events = [...kept.events, ...found.events].slice(-MOST);
    kept.end = found.end;
    return { settings: found.settings, events: kept.events };
  }, [level, model, text]);
  const set = async (settings) => {
    try { await change("log/settings", settings); setRefusal(null); } catch (error) {
      setRefusal(error);
      if (error.status === 401) window.dispatchEvent(new Event("token-needed"));
    }
  };
  const settings = data?.settings;
  return html`
    <div class="title"><h1>Log</h1><span class="muted">the last lines of all processes, the newest first</span></div>
    ${refusal && html`<div class="banner bad" role="alert">${refusal.message}</div>`}
    <div class="filters">
      <select aria-label="Lowest level shown" value=${level} onChange=${(event) => setLevel(event.target.value)}>
        <option value="">every level</option><option value="INFO">info and above</option><option value="WARNING">warnings and errors</option><option value="ERROR">errors</option></select>
      <input placeholder="Model" aria-label="Model" onChange=${(event) => setModel(event.target.value)} />
      <input type="search" class="grow" placeholder="Find in the messages" aria-label="Find in the messages" onChange=${(event) => setText(event.target.value)} />
      ${settings && html`<label class="inline">Log verbosely <select value=${Math.min(settings.log_verbose_level, 3)} onChange=${(event) => set({ log_verbose_level: +event.target.value })}>
        ${[0, 1, 2, 3].map((each) => html`<option key=${each} value=${each}>${each ? `level ${each}` : "no"}</option>`)}</select></label>
      <label class="inline"><input type="checkbox" checked=${settings.log_access === "true" || settings.log_access === "all"} onChange=${(event) => set({ log_access: event.target.checked ? "true" : "false" })} /> each request</label>`}
    </div>
    ${!data ? (error ? html`<${Failure} error=${error} what="The log" />` : html`<${Loading} what="the log" />`)
    : !data.events.length ? html`<${Empty} title="No lines">${level || model || text ? "No line matches." : "The server has logged nothing yet."}<//>` : html`
    <div class="log card flush" tabindex="0" role="log" aria-label="Lines of the log">${[...data.events].reverse().map((event) => html`
      <div class=${`line ${event.level.toLowerCase()}`} key=${`${event.time}${event.pid}${event.line}${event.message}`}>
        <time>${event.time.slice(11, 23)}</time><span class="level">${event.level.slice(0, 1)}</span><span class="logger">${event.logger.replace("trident.", "")}</span>
        <span class="message">${event.message}${event.table && html`<pre>${event.table}</pre>`}${event.command && html`<pre>${event.command}</pre>`}${event.traceback && html`<pre>${event.traceback}</pre>`}</span></div>`)}</div>`}`;
}
