// What the server answers; a refusal becomes an error with its sentence.

/** Return the JSON value of a name. */
export async function get(name, query = {}) {
  const answer = await fetch(address(name, query));
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  throw new Error(text.startsWith("{") ? JSON.parse(text).error : text.trim());
}

/** Return where something lies. */
export const address = (name, query) => `/api/${name}?${new URLSearchParams(query)}`;
