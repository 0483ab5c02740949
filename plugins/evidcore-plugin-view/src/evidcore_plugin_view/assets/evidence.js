// A report that leads to its evidence: sentences and findings that go to the slice that is cited for them.
import { h } from "./dom.js";

const TAG = /(<\/?[A-Za-z_]+>)/;

/** Return a text with its tags set apart. */
export const tagged = (text) => text.split(TAG).map((piece) => (TAG.test(piece) ? h("span", { class: "tag" }, piece) : piece));

/** Tell whether a line is a written report, or cites slices. */
export function isReport(line) {
  const { slices } = line.evidence ?? line;
  return Array.isArray(line.affirmed) || line.text.text.includes("<report>") || Object.keys(slices ?? {}).length > 0;
}

/** Return a report whose sentences can be pressed; `point` is called with a finding. */
export function marked(text, told, point) {
  const characters = [...text]; // places count characters, JavaScript half characters
  const pieces = [];
  let end = 0;
  for (const one of told.sentences) {
    const finding = one.findings.find((name) => told.slices[name] !== null) ?? one.findings[0];
    const press = (event) => {
      event.preventDefault();
      point(finding);
    };
    const said = told.slices[finding] === null ? "no slice is cited" : `slice ${told.slices[finding]}`;
    pieces.push(...tagged(characters.slice(end, one.start).join("")), h("a", {
      href: "#", class: "sentence leads", title: `${finding}: ${said}`, "data-finding": finding, onclick: press,
    }, characters.slice(one.start, one.end).join("")));
    end = one.end;
  }
  return [...pieces, ...tagged(characters.slice(end).join(""))];
}

/** Return the findings of a report, each with the slice that is cited for it. */
export function findings(told, point) {
  const names = Object.keys(told.slices);
  if (!names.length) return h("p", { class: "faint" }, "It affirms no finding that is known here.");
  return h("ul", { class: "findings-cited", "aria-label": "Findings and their slices" }, names.map((name) => h("li", {},
    h("button", { type: "button", class: "plain leads", "data-cites": name, onclick: () => point(name) }, name),
    h("span", { class: "faint" }, told.slices[name] === null ? " cites no slice" : ` slice ${told.slices[name]}`))));
}
