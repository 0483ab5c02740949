// Where the reader is, in the URL's fragment: a link that is kept leads back to the same question.

const USUAL = {
  view: "answers", a: "", b: "", show: "all", finding: "", patient: "", task: "", sort: "order", words: "", at: "", scan: "",
};
export const place = { ...USUAL };

/** Read the fragment. */
export function readPlace() {
  Object.assign(place, USUAL);
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) if (key in USUAL) place[key] = value;
}

/** Write changes into the fragment; only a change of question is a step back. */
export function writePlace(changes, { step = false } = {}) {
  Object.assign(place, changes);
  const kept = Object.entries(place).filter(([key, value]) => value !== USUAL[key]);
  const fragment = `#${new URLSearchParams(kept)}`;
  if (fragment === location.hash || (fragment === "#" && !location.hash)) return;
  if (step) history.pushState(null, "", fragment);
  else history.replaceState(null, "", fragment);
}

/** Read a side: run:stage:condition. */
export function side(text) {
  const [run, stage, condition] = text.split(":");
  return stage ? { run, stage, condition: condition ?? "own" } : null;
}
