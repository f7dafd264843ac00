// The server's data. Every address is relative, so that the console works behind a proxy's prefix.

let token = "";  // in memory only: it is gone with the page

export function useToken(given) { token = given; }

export class Refusal extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

export function headers(more = {}) {
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store" });
  } catch {
    throw new Refusal(0, "The server does not answer.", "It may have been stopped, or the network is down.");
  }
  if (response.ok) return response;
  const text = await response.text();
  let said = {};
  try { said = JSON.parse(text); } catch { /* not every answer is JSON */ }
  throw new Refusal(response.status, said.error || text || response.statusText, said.hint);
}

export async function get(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value != null));
  return (await ask(`console/api/${path}?${query}`)).json();
}

export async function change(path, body) {
  const options = { method: "POST", headers: { "Trident-Console": "1", "Content-Type": "application/json" } };
  return (await ask(`console/api/${path}`, { ...options, body: JSON.stringify(body) })).json();
}

// The server compares a path as it is sent.
export const modelPath = (name, version) =>
  `v2/models/${encodeURIComponent(name)}${version ? `/versions/${version}` : ""}`;
