// Elements whose texts are text: nothing that a model or a data set wrote becomes markup.

/** Return an element; children are elements, text or null, attributes may be listeners (onclick). */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return an SVG element. */
export function s(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, set] of Object.entries(value)) element.style.setProperty(name, set);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...present(children));
  return element;
}

/** Return children without those that are not there. */
const present = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

/** Put children into an element in place of what it holds. */
export const put = (element, ...children) => element.replaceChildren(...present(children));

/** Return a number as it is read; a dash where there is none. */
export function figure(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return String(Number(Number(value).toFixed(digits))).replace("-", "−");
}

export const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);

/** Return a change of a score in points, with its sign. */
export function points(change) {
  if (change === null) return "–";
  const sign = change > 0 ? "+" : change < 0 ? "−" : "±";
  return `${sign}${figure(Math.abs(100 * change), 1)}`;
}

export const counted = (count) => count.toLocaleString("en").replaceAll(",", "\u202f");

const WRITTEN = { rate: percent, points, count: counted };

/** Return a value in its unit; a dash where there is none. */
export const written = (unit, value) => (value === undefined || value === null ? "–" : (WRITTEN[unit] ?? figure)(value));
