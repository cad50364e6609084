// Asks the daemon. The token is kept in this tab only.

const KEY = "targe-token";
const PATIENCE_MS = 15000;

let token = stored();

function stored() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** The daemon demands a token, or another one. */
export class TokenNeeded extends Error {}

/** The daemon answers, and cannot tell what it was asked. */
export class Refused extends Error {}

export const hasToken = () => token !== null;

/** Uses a token from now on; none if it is null. */
export function setToken(value) {
  token = value;
  try {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  } catch {
    // Without storage the token lasts until the page is loaded again.
  }
}

/** Returns what a method of the API tells. */
export async function get(method) {
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const options = { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" };
  const response = await fetch(`/api/v1/${method}`, options);
  if (response.status === 401) throw new TokenNeeded();
  if (response.ok) return response.json();
  const text = await response.text();
  throw new Refused(sentence(text) || `it answers ${response.status}`);
}

function sentence(text) {
  try {
    return JSON.parse(text).message;
  } catch {
    return text.trim();
  }
}
