// The repository index, and loading and unloading.

import { html, useState } from "./vendor/preact.js";
import { get, change } from "./api.js";
import { counted } from "./format.js";
import { usePoll, calm, Loading, Failure, Empty, State, Card } from "./parts.js";

const PAGE = 100;
const MOST_CHANGES = 50;

// What has changed since the page was opened, the last first; it stays while other views are shown.
const changes = [];
let before = null;

function note(entries) {
  const now = new Map(entries.filter((each) => each.version).map((each) => [`${each.name} ${each.version}`, each]));
  const tell = (each, text) => changes.unshift({ at: new Date(), name: each.name, version: each.version, text, reason: each.reason });
  if (before) {
    for (const [key, each] of now) {
      const old = before.get(key);
      if (!old || old.state !== each.state) tell(each, each.state);
      else if (each.reason && old.reason !== each.reason) tell(each, each.state);
    }
    for (const [key, each] of before) if (!now.has(key)) tell(each, "");
  }
  before = now;
  changes.length = Math.min(changes.length, MOST_CHANGES);
}

// Why the server takes no changes, by its mode of control.
const CLOSED = {
  none: "It loads models at its start only. To load and unload them here, start it with --model-control-mode=explicit --load-model=*.",
  poll: "It follows the files of its repository, and loads and unloads models by itself. To do that here, start it with --model-control-mode=explicit --load-model=*.",
};

export function Repository({ server }) {
  const [search, setSearch] = useState("");
  const [shown, setShown] = useState(PAGE);
  const [busy, setBusy] = useState({});
  const [told, setTold] = useState(null);
  const { data, error } = usePoll(async () => { const found = await get("index"); note(found); return found; }, [], 3000);
  if (!data) return error ? html`<${Failure} error=${error} what="The repository" />` : html`<${Loading} what="the repository" />`;
  const act = async (action, name) => {
    setBusy((before) => ({ ...before, [name]: action }));
    setTold(null);
    try {
      await change(action, { name });
      setTold({ text: action === "load" ? `${name} is loaded.` : `${name} is being unloaded.` });
    } catch (refusal) {
      if (refusal.status === 401) window.dispatchEvent(new Event("token-needed"));
      setTold({ error: refusal, text: `${name} could not be ${action}ed: ${refusal.message}` });
    }
    setBusy((before) => ({ ...before, [name]: null }));
  };
  const models = new Map();
  for (const entry of data) models.set(entry.name, [...(models.get(entry.name) || []), entry]);
  const matching = [...models].filter(([name]) => name.toLowerCase().includes(search.toLowerCase()));
  const closed = CLOSED[server?.control_mode];
  return html`
    <div class="title"><h1>Repository</h1><span class="muted">${counted(models.size, "model")}</span></div>
    ${closed && html`<div class="banner" role="status">This server takes no changes. ${closed}</div>`}
    ${told && html`<div class=${`banner${told.error ? " bad" : " good"}`} role="alert">${told.text} ${told.error?.hint && html`<span class="muted">${told.error.hint}</span>`}</div>`}
    <div class="filters"><input type="search" placeholder="Find a model" aria-label="Find a model" value=${search} onInput=${(event) => setSearch(event.target.value)} /></div>
    ${!matching.length ? html`<${Empty} title=${models.size ? "No model matches" : "The repository is empty"}>${models.size ? "Try fewer letters." : "A model is a folder with a numbered folder for each version."}<//>` : html`
    <div class="scroll card flush" tabindex="0" role="region" aria-label="Repository index"><table class="index"><thead><tr><th scope="col">Model</th><th scope="col">Versions</th><th scope="col">Reason</th><th scope="col" class="num">Actions</th></tr></thead>
      <tbody>${matching.slice(0, shown).map(([name, entries]) => html`<tr key=${name}>
        <th scope="row"><a href=${`#/models/${encodeURIComponent(name)}`}>${name}</a></th>
        <td class="versions">${entries.map((each) => html`<span class="stack" key=${each.version}>${each.version && html`<span class="version">${each.version} </span>`}<${State} state=${each.state} reason=${each.reason} running=${each.running_s} /></span>`)}</td>
        <td class="reason">${entries.filter((each) => each.reason && !calm(each)).map((each) => each.reason).join("; ")}</td>
        <td class="num actions">
          <button class="small" disabled=${!!closed || busy[name]} title=${closed} onClick=${() => act("load", name)}>${busy[name] === "load" ? "Loading…" : entries.some((each) => each.state === "READY") ? "Reload" : "Load"}<span class="only-read"> ${name}</span></button>
          <button class="small" disabled=${!!closed || busy[name] || !entries.some((each) => each.state === "READY")} title=${closed} onClick=${() => act("unload", name)}>Unload<span class="only-read"> ${name}</span></button></td></tr>`)}</tbody></table></div>
    ${!!changes.length && html`<${Card} title="What has changed" note="since the page was opened" wide><table class="settings"><tbody>${changes.map((each, i) => html`<tr key=${changes.length - i}>
      <td>${each.at.toLocaleTimeString("en-GB")}</td><th scope="row">${each.name} ${each.version}</th><td>${each.text ? html`<${State} state=${each.text} reason=${each.reason} />` : html`<span class="muted">gone</span>`}</td><td class="reason">${calm(each) ? "" : each.reason}</td></tr>`)}</tbody></table><//>`}
    ${matching.length > shown && html`<p class="center"><button onClick=${() => setShown(shown + PAGE)}>Show ${Math.min(PAGE, matching.length - shown)} more</button></p>`}`}`;
}
