// The audits: what each showing of the same questions scored, lowest first, and a way to the answers under it.
import { get } from "./api.js";
import { h, put, s, written } from "./dom.js";
import { heading } from "./results.js";

const LANE_PX = 22;
const TONES = { own: "own", "other-patient": "other", blank: "blank" };

/** Draw the audits of all runs into `root`; `go` is called with a place of the viewer. */
export async function drawAudits(root, runs, go) {
  const blocks = await Promise.all(Object.keys(runs).map(async (name) => {
    const audits = await get("audits", { run: name });
    return [heading(runs, name), audits.map((one) => staircase(name, one, go)), audits.length ? null : h("p", { class: "empty" },
      "No grounding audit has run. ", h("code", {}, `evid audit policy ${runs[name].folder}`),
      " asks the same questions over blank, scrambled, altered and other patients' volumes.")];
  }));
  put(root, h("div", { class: "results" }, blocks));
}

function staircase(run, audit, go) {
  const ends = audit.steps.flatMap((step) => [step.value, step.low, step.high]).filter((value) => typeof value === "number");
  const [start, stop] = ["rate", "score"].includes(audit.unit) ? [0, 1] : [Math.min(0, ...ends), Math.max(0, ...ends) || 1];
  return h("section", { class: "staircase", "data-task": audit.task },
    h("h2", {}, `${audit.stage}: ${audit.task}`),
    audit.verdict ? h("p", { class: "verdict" }, audit.verdict) : null,
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `steps of ${audit.task}` }, h("table", {},
      h("thead", {}, h("tr", {}, ["shown", audit.metric.replaceAll("_", " "), "95 % interval", "", "own minus this", "answers"].map((name) =>
        h("th", { scope: "col" }, name)))),
      h("tbody", {}, audit.steps.map((step) => h("tr", { class: step.condition === "own" ? "headline" : "", "data-condition": step.condition ?? "rule" },
        h("th", { scope: "row" }, step.name, step.note ? h("small", {}, step.note) : null),
        h("td", { class: "num" }, written(audit.unit, step.value)),
        h("td", { class: "num" }, spread(audit.unit, step)),
        h("td", { class: "drawn" }, lane(step, start, stop)),
        h("td", { class: "num" }, step.above ? [written("points", step.above.value), " ", h("span", { class: "faint" }, spread("points", step.above))] : "–"),
        h("td", {}, step.condition && step.condition !== "own" ? h("button", { type: "button", class: "plain leads", onclick: () => go({
          view: "answers", a: `${run}:${audit.stage}:own`, b: `${run}:${audit.stage}:${step.condition}`, show: "all", task: "", at: "",
        }, { step: true }) }, "beside own", h("span", { class: "unseen" }, `: ${step.name}`)) : null)))))));
}

const spread = (unit, { low, high }) => (low === null ? "–" : `${written(unit, low)} to ${written(unit, high)}`);

function lane(step, start, stop) {
  const at = (value) => `${(100 * (Math.min(stop, Math.max(start, value)) - start)) / (stop - start)}%`;
  const middle = LANE_PX / 2;
  return s("svg", { height: LANE_PX, width: "100%", class: `lane ${TONES[step.condition] ?? "quiet"}`, "aria-hidden": "true" },
    s("line", { x1: "0%", x2: "100%", y1: middle, y2: middle, class: "rail" }),
    step.low === null ? null : s("line", { x1: at(step.low), x2: at(step.high), y1: middle, y2: middle, class: "spread" }),
    s("circle", { cx: at(step.value), cy: middle, r: 5 }));
}
