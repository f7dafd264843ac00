// The frame of the console: its head, the view that the address names, and the field for a token.

import { html, render, useState, useEffect, useRef } from "./vendor/preact.js";
import { useToken, get } from "./api.js";
import { usePoll } from "./parts.js";
import { Overview } from "./overview.js";
import { Model } from "./model.js";
import { Demand } from "./demand.js";
import { Repository } from "./repository.js";
import { Log } from "./log.js";
import { Traces } from "./traces.js";

const VIEWS = [["", "Overview", Overview], ["demand", "On demand", Demand], ["repository", "Repository", Repository], ["log", "Log", Log], ["traces", "Traces", Traces]];

// `#/models/NAME/VIEW`: each part is encoded.
function place() {
  const [view = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { view, rest };
}

function App() {
  const [at, setAt] = useState(place());
  const [asksToken, setAsksToken] = useState(false);
  const { data: server, error } = usePoll(() => get("server"), [], 2000);
  const [theme, setTheme] = useState(() => { try { return localStorage.getItem("theme") || ""; } catch { return ""; } });
  const main = useRef();
  useEffect(() => {
    const moved = () => { setAt(place()); main.current?.focus({ preventScroll: true }); scrollTo(0, 0); };
    const needed = () => setAsksToken(true);
    window.addEventListener("hashchange", moved);
    window.addEventListener("token-needed", needed);
    return () => { window.removeEventListener("hashchange", moved); window.removeEventListener("token-needed", needed); };
  }, []);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("theme", theme); } catch { /* no storage: the system's theme next time */ }
    window.dispatchEvent(new Event("theme"));
  }, [theme]);
  const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const views = VIEWS.filter(([view]) => view !== "demand" || server?.control_mode === "demand");
  const View = (VIEWS.find(([view]) => view === at.view) || VIEWS[0])[2];
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/"><img src="console/page/icon.svg" alt="" width="26" height="26" /><span>Trident${server && html` <small class="muted">${server.version}</small>`}</span></a>
      <nav aria-label="Views">${views.map(([view, title]) => html`
        <a key=${view} href=${`#/${view}`} aria-current=${view === at.view || (!view && at.view === "models") ? "page" : undefined}>${title}</a>`)}</nav>
      <div class="health" role="status">${error && error.status !== 401 ? html`<span class="pill bad">no answer</span>` : server && html`<${Health} server=${server} />`}</div>
      <button class="icon" onClick=${() => setTheme(isDark ? "light" : "dark")} aria-label=${`Use the ${isDark ? "light" : "dark"} theme`} title=${`Use the ${isDark ? "light" : "dark"} theme`}>${isDark ? "☀" : "☾"}</button>
    </header>
    ${asksToken && html`<${Login} onGiven=${() => setAsksToken(false)} />`}
    <main ref=${main} tabindex="-1" id="main">
      ${at.view === "models" && at.rest[0]
        ? html`<${Model} key=${at.rest[0]} name=${at.rest[0]} tab=${at.rest[1] || "load"} theme=${isDark} />`
        : html`<${View} server=${server} />`}
    </main>`;
}

const Health = ({ server }) => server.is_ready
  ? html`<span class="pill good">ready</span>${server.name !== "triton" && html`<span class="muted hide-small">${server.name}</span>`}`
  : html`<span class="pill bad">not ready</span><span class="muted">${server.phase}${server.model ? ` ${server.model}` : ""}, ${server.loaded} of ${server.total} loaded</span>`;

function Login({ onGiven }) {
  const [error, setError] = useState("");
  const field = useRef();
  useEffect(() => { field.current.focus(); }, []);
  const submit = async (event) => {
    event.preventDefault();
    useToken(field.current.value.trim());
    try {
      await get("log", { after: Number.MAX_SAFE_INTEGER });
      onGiven();
      window.dispatchEvent(new Event("token-given"));
    } catch (refusal) {
      useToken("");
      setError(refusal.status === 401 ? "This token is not accepted." : refusal.message);
      field.current.select();
    }
  };
  return html`<div class="veil"><form class="login card" onSubmit=${submit} role="dialog" aria-modal="true" aria-labelledby="login-title">
      <h2 id="login-title">A token, please</h2>
      <p class="muted">This server asks for a token, one of its <code>--auth-token-file</code>. The page keeps it in memory only, until it is closed.</p>
      <label>Token <input ref=${field} type="password" autocomplete="off" spellcheck="false" required /></label>
      ${error && html`<p class="wrong" role="alert">${error}</p>`}
      <div class="row end"><button type="button" class="plain" onClick=${onGiven}>Not now</button><button class="main">Use the token</button></div>
    </form></div>`;
}

render(html`<${App} />`, document.getElementById("app"));
