// The figures of every stage, headline rows first.
import { get } from "./api.js";
import { h, put, written } from "./dom.js";

/** Draw the results of all runs into `root`. */
export async function drawResults(root, runs) {
  const blocks = await Promise.all(Object.keys(runs).map(async (name) => {
    const results = await get("results", { run: name });
    return [heading(runs, name), results.filter((one) => one.rows.length).map((one) => stage(one)),
      results.some((one) => one.rows.length) ? null : h("p", { class: "empty" }, "No stage has written figures yet.")];
  }));
  put(root, h("div", { class: "results" }, blocks));
}

/** Return whose results follow, where there are two runs. */
export function heading(runs, name) {
  return Object.keys(runs).length > 1 ? h("h2", {}, h("span", { class: `letter ${name}` }, name.toUpperCase()), ` ${runs[name].name}`) : null;
}

function stage(result) {
  const order = [...result.rows].sort((x, y) => Number(Boolean(y.headline)) - Number(Boolean(x.headline)));
  return h("details", { open: order.some((row) => row.headline) },
    h("summary", {}, result.stage, h("span", { class: "faint" }, ` ${order.length} rows`)),
    Object.values(result.verdict).map((sentence) => h("p", { class: "verdict" }, String(sentence))),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `figures of ${result.stage}` }, h("table", {},
      h("thead", {}, h("tr", {}, ["", "metric", "value", "95 % interval", "note"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, order.map((row) => h("tr", { class: row.headline ? "headline" : "" },
        h("th", { scope: "row" }, row.name ?? row.task ?? ""), h("td", {}, row.metric), h("td", { class: "num" }, written(row.unit, row.value)),
        h("td", { class: "num" }, row.low === undefined ? "–" : `${written(row.unit, row.low)} to ${written(row.unit, row.high)}`),
        h("td", { class: "faint" }, row.note ?? "")))))));
}
