// The viewer: reads the place in the fragment, draws head, list and question, listens to keys.
import { get, takeKey } from "./api.js";
import { drawAudits } from "./audit.js";
import { Detail } from "./detail.js";
import { h, put } from "./dom.js";
import { place, readPlace, side, writePlace } from "./place.js";
import { QuestionList, Questions } from "./questions.js";
import { drawResults } from "./results.js";

const LOOK_AGAIN_MS = 4000;
const RELOADS = ["view", "a", "b"];
const TABLES = { audits: ["Audits", drawAudits], results: ["Results", drawResults] }; // views without questions
const head = document.getElementById("head");
const [listRoot, detailRoot] = [document.getElementById("list"), document.getElementById("detail")];
let runs = {};
let list = null;
const questions = new Questions();
const detail = new Detail(detailRoot);

/** Choose the sides that say most: before and after training, or the same stage of two runs. */
function usualSides() {
  const stages = Object.entries(runs).flatMap(([run, told]) => told[place.view].map((one) => ({ ...one, run })));
  const name = (one) => (place.view === "answers" ? `${one.run}:${one.stage}:own` : `${one.run}:${one.stage}`);
  const known = (text) => stages.some((one) => one.run === side(text)?.run && one.stage === side(text)?.stage);
  if (known(place.a) && (!place.b || known(place.b))) return;
  const plain = stages.filter((one) => one.kind === "evaluate" && !one.arm);
  const asked = plain.length ? plain : stages;
  if (place.view !== "answers") return writePlace({ a: stages.length ? name(stages[0]) : "", b: "" });
  const last = (run) => asked.filter((one) => one.run === run).at(-1);
  const [first, second] = runs.b ? [last("a"), last("b")] : [asked[0], asked.at(-1)];
  writePlace({ a: first ? name(first) : "", b: second && second !== first ? name(second) : "" });
}

function drawHead() {
  const tabs = [["answers", "Answers"], ["rollouts", "Rollouts"], ["audits", "Audits"], ["results", "Results"]];
  put(head, 
    h("p", { class: "brand" }, "evidcore ", h("b", {}, "view")),
    ...Object.entries(runs).map(([key, run]) => h("div", { class: "run" },
      runs.b ? h("span", { class: `letter ${key}` }, key.toUpperCase()) : null,
      h("h1", {}, run.name), h("code", { class: "faint" }, run.folder),
      h("span", { class: `state ${run.state}`, title: run.message }, run.state === "running" && run.stage ? `${run.stage}, step ${run.step}` : run.state),
      run.phantoms.length ? h("span", { class: "badge", title: "Generated CT phantoms, not patients" }, run.real.length ? `phantom: ${run.phantoms.join(", ")}` : "phantom data") : null)),
    h("nav", { "aria-label": "Views" }, tabs.map(([name, label]) => h("button", {
      type: "button", "aria-pressed": String(place.view === name), onclick: () => go({ view: name, a: "", b: "", show: "all", sort: "order", at: "" }, { step: true }),
    }, label))));
}

/** Change the place and draw what it changes. */
async function go(changes, { step = false } = {}) {
  const before = { ...place };
  writePlace(changes, { step });
  await draw(before);
}

async function draw(before = {}) {
  document.body.dataset.view = place.view in TABLES ? "table" : "questions";
  document.getElementById("figures")?.remove();
  if (place.view in TABLES) {
    const [name, drawTable] = TABLES[place.view];
    drawHead();
    put(listRoot);
    const root = h("section", { id: "figures", "aria-label": name });
    document.getElementById("main").append(root);
    await drawTable(root, runs, go);
    return;
  }
  try {
    usualSides();
    const changed = (keys) => keys.some((key) => before[key] !== place[key]);
    if (changed(RELOADS)) {
      drawHead();
      await questions.load();
      list = new QuestionList(listRoot, questions, runs, go);
      list.conditions = await conditions();
    } else if (before.words !== place.words) await questions.search();
    else questions.choose();
    if (changed([...RELOADS, "show", "finding", "patient", "task", "sort", "words"])) {
      if (!questions.shown.some((pair) => pair.key === place.at) && before.view !== undefined) writePlace({ at: questions.shown[0]?.key ?? "" });
      list.draw();
    } else list.mark();
    const current = questions.current();
    document.title = `${current?.a.findings[0] ?? current?.a.case ?? place.view} · ${runs.a.name} · evidcore view`;
    if (!questions.pairs.length) {
      listRoot.append(h("p", { class: "empty" }, place.view === "answers" ? "No evaluation has stored answers yet." : "No stage has judged a group of rollouts."));
    }
    await detail.show(current);
  } catch (error) {
    put(listRoot, h("p", { class: "bad" }, error.message));
  }
}

/** Return which volumes the questions of the chosen stages were asked over. */
async function conditions() {
  if (place.view !== "answers") return {};
  const chosen = [side(place.a), side(place.b)].filter(Boolean);
  const found = await Promise.all(chosen.map(async ({ run, stage }) => {
    const rows = await get("rows", { run, kind: "answers", stage });
    return [`${run}:${stage}`, [...new Set(rows.map((row) => row.condition))]];
  }));
  return Object.fromEntries(found);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (place.view in TABLES) return;
  const keys = {
    j: () => walk(1), k: () => walk(-1), m: () => detail.scan.toggleAll(),
    ArrowUp: () => detail.scan.step(-1), ArrowDown: () => detail.scan.step(1),
    "/": () => listRoot.querySelector('[data-pick="words"]')?.focus(),
    1: () => detail.scan.choose(0), 2: () => detail.scan.choose(1), 3: () => detail.scan.choose(2),
  };
  if (!keys[event.key] || (event.key.startsWith("Arrow") && event.target.closest(".screen"))) return;
  event.preventDefault();
  keys[event.key]();
});

function walk(steps) {
  const next = questions.beside(steps);
  if (next) go({ at: next.key }, { step: true });
}

/** Look again at the runs: of one that trains, new answers and groups join the list. */
async function follow() {
  const before = JSON.stringify(runs);
  runs = await get("runs").catch(() => runs);
  if (JSON.stringify(runs) !== before) {
    drawHead();
    const count = questions.pairs.length;
    if (!(place.view in TABLES) && side(place.a)) await questions.load().catch(() => {});
    if (!count || !side(place.a)) await draw({});
    else if (questions.pairs.length !== count) {
      list.runs = runs;
      const isTyping = document.activeElement?.matches("#list input");
      if (!isTyping) list.draw(); // else with the next change
    }
  }
  setTimeout(follow, LOOK_AGAIN_MS);
}

window.addEventListener("popstate", () => {
  if (takeKey()) return location.reload(); // the address of a viewer that was started anew
  const before = { ...place };
  readPlace();
  draw(before);
});
readPlace();
runs = await Promise.resolve().then(takeKey).then(() => get("runs")).catch((error) => {
  put(head, h("p", { class: "bad" }, error.message));
  return {};
});
if (runs.a) {
  await draw({});
  document.body.dataset.ready = "true";
  setTimeout(follow, LOOK_AGAIN_MS);
}
