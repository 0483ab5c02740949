// What the server answers; a refusal becomes an error with its sentence.

const KEY = "key"; // to the run, for this tab and this port alone: no cookie, which all ports of a host are sent

/** Take the key out of the address, so that no link that is passed on holds it; tell whether there was one. */
export function takeKey() {
  const { pathname, hash } = location;
  const fragment = new URLSearchParams(hash.slice(1));
  if (!fragment.has(KEY)) return false;
  sessionStorage.setItem(KEY, fragment.get(KEY));
  fragment.delete(KEY);
  history.replaceState(null, "", fragment.size ? `#${fragment}` : pathname);
  return true;
}

/** Return the answer at an address. */
export async function ask(address) {
  const key = sessionStorage.getItem(KEY);
  const answer = await fetch(address, key ? { headers: { Authorization: `Bearer ${key}` } } : {});
  if (answer.ok) return answer;
  const text = await answer.text();
  throw new Error(text.startsWith("{") ? JSON.parse(text).error : text.trim());
}

/** Return the JSON value of a name. */
export const get = async (name, query = {}) => (await ask(address(name, query))).json();

/** Return where something lies. */
export const address = (name, query) => `/api/${name}?${new URLSearchParams(query)}`;
