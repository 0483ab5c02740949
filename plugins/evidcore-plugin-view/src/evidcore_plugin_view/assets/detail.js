// One question: its scan, what was asked, what each side wrote, how a group's rollouts were rewarded.
import { get } from "./api.js";
import { counted, figure, h, put } from "./dom.js";
import { findings, isReport, marked, tagged } from "./evidence.js";
import { forks } from "./forks.js";
import { place, side } from "./place.js";
import { ScanView } from "./scan.js";

const READINGS = [
  ["choice", "answered"], ["lenient_choice", "lenient"], ["rescue_choice", "rescue"],
  ["log_likelihood_choice", "likeliest option"], ["verdict_log_likelihood_choice", "likeliest verdicts"], ["answer", "right answer"],
  ["target", "asked for"], ["slice", "slice"], ["gold_slice", "right slice"], ["refused", "segmenter"],
];

const SLICES = new Set(["slice", "gold_slice"]);

/** Draws the chosen question into `root`. */
export class Detail {
  constructor(root) {
    this.root = root;
    this.scan = new ScanView(h("div", { class: "scan" }));
    this.text = h("div", { class: "words" });
    this.title = h("header", { class: "question" });
    this.told = h("div");
    this.scan.known = () => this.tellReport();
    this.root.append(this.title, h("div", { class: "beside" }, this.scan.root, this.text));
  }

  async show(pair) {
    this.root.hidden = !pair;
    if (!pair) return;
    this.pair = pair;
    const references = this.references(pair);
    const lines = Object.values(references).map((line) => get("line", { line }));
    const about = pair.a.findings.join(", ") || pair.a.task;
    put(this.title, h("h2", {}, about), h("p", { class: "faint" }, pair.a.task, " · case ", h("code", {}, pair.a.case),
      pair.a.patient ? [" · patient ", h("code", {}, pair.a.patient)] : null, pair.a.step !== undefined ? ` · step ${pair.a.step}` : null));
    this.rollout = null;
    const scan = this.scan.show(references);
    try {
      const found = await Promise.all(lines);
      if (this.pair !== pair) return;
      if (found[0].phantom) this.title.append(h("span", { class: "badge" }, "phantom"));
      put(this.told, report(found[0]));
      put(this.text, ...(place.view === "answers" ? this.answers(found) : this.group(found[0])));
      this.link(references, found);
    } catch (error) {
      put(this.text, h("p", { class: "bad" }, error.message));
    }
    await scan;
  }

  /** Make the sentences of written reports lead to the slices that are cited for them. */
  link(references, lines) {
    const written = place.view === "answers"
      ? lines.map((line, index) => ({ line, side: "ab"[index], reference: references["ab"[index]], choose: async () => {} }))
      : lines[0].rollouts.map((line, index) => ({ line, side: "a", reference: `${references.a}:${index}`, choose: () => this.choose(index) }));
    for (const { line, side: name, reference, choose } of written.filter((one) => isReport(one.line))) {
      const root = this.text.querySelector(`[data-line="${reference}"]`);
      get("sentences", { line: reference }).then((told) => {
        const point = async (finding) => {
          await choose();
          await this.scan.pointAt(name, finding, told.slices[finding]);
        };
        [...root.querySelectorAll(".text")].at(-1)?.replaceChildren(...marked(line.text.text, told, point)); // turns come first
        put(root.querySelector(".cited"), findings(told, point));
      }).catch((error) => put(root.querySelector(".cited"), h("p", { class: "bad" }, error.message)));
    }
  }

  /** Draw one rollout of the group, as its button does. */
  async choose(index) {
    this.text.querySelector(`input[name="rollout"][value="${index}"]`).checked = true;
    if (this.rollout === index) return;
    this.rollout = index;
    await this.scan.redraw(this.references(this.pair, index));
  }

  /** Show the report once the data set has told it. */
  async tellReport() {
    const { pair } = this;
    const line = await get("line", { line: this.references(pair).a }).catch(() => null);
    if (line && this.pair === pair) put(this.told, report(line));
  }

  references(pair, rollout = null) {
    const [a, b] = [side(place.a), place.view === "answers" ? side(place.b) : null];
    const name = (of, row) => `${of.run}:${place.view}:${of.stage}:${row.number}`;
    const first = name(a, pair.a) + (rollout === null ? "" : `:${rollout}`);
    return { a: first, ...(b && pair.b ? { b: name(b, pair.b) } : {}) };
  }

  answers(lines) {
    const letters = lines.length > 1 ? ["A", "B"] : [""];
    return [
      prompt(lines[0].prompt),
      h("div", { class: "answers" }, lines.map((line, index) => this.answer(line, letters[index], "ab"[index]))),
      this.told,
    ];
  }

  answer(line, letter, name) {
    const right = line.correct ?? null;
    const score = line.value ?? null;
    const pill = right !== null
      ? h("span", { class: `pill ${right ? "right" : "wrong"}` }, right ? "right" : "wrong")
      : score !== null ? h("span", { class: "pill" }, `score ${figure(score)}`) : null;
    const read = READINGS.filter(([key]) => line[key] !== undefined && line[key] !== null).map(([key, label]) =>
        [label, SLICES.has(key) ? h("button", { type: "button", class: "plain leads", onclick: () => this.scan.pointAt(name, null, line[key]) }, line[key]) : line[key]]);
    const dice = line.figures?.dsc;
    if (typeof dice === "number") read.push(["Dice", figure(dice)]);
    return h("article", { class: `answer ${letter.toLowerCase()}`, "data-line": this.references(this.pair)[name] },
      h("header", {}, letter ? h("span", { class: `letter ${letter.toLowerCase()}` }, letter) : null,
        h("b", {}, line.stage), line.condition && line.condition !== "own" ? h("span", { class: "faint" }, line.condition) : null, pill),
      turns(line.turns), completion(line.text), h("div", { class: "cited" }), malformed(line.malformed), read.length ? facts(read) : null, affirmed(line));
  }

  group(line) {
    const rollouts = line.rollouts.map((one, index) => ({ ...one, index }));
    rollouts.sort((x, y) => (y.total ?? 0) - (x.total ?? 0));
    const widest = Math.max(1e-9, ...rollouts.map((one) => Math.abs(one.advantage ?? 0)));
    const right = Object.entries(line.reference ?? {}).filter(([, value]) => ["string", "number", "boolean"].includes(typeof value));
    const items = rollouts.map((one, rank) => {
      const choose = h("input", { type: "radio", name: "rollout", value: one.index, "aria-label": `draw rollout ${rank + 1}`, onchange: () => this.choose(one.index) });
      return h("li", { class: "rollout", "data-line": this.references(this.pair, one.index).a },
        h("header", {}, h("label", {}, choose, ` #${rank + 1}`), h("span", {}, "total ", h("b", {}, figure(one.total))),
          h("span", { class: "faint" }, "advantage ", figure(one.advantage)),
          one.parent ? h("span", { class: "faint" }, `forked from #${rollouts.findIndex((other) => other.index === one.parent[0]) + 1} at token ${one.parent[1]}`) : null),
        balance((one.advantage ?? 0) / widest), turns(one.turns), completion(one.text), h("div", { class: "cited" }), malformed(one.malformed), rewards(one.rewards));
    });
    return [
      prompt(line.prompt),
      right.length ? facts(right) : null,
      h("h3", {}, `${rollouts.length} rollouts, best first`),
      forks(rollouts, (index) => {
        this.choose(index);
        this.text.querySelector(`input[name="rollout"][value="${index}"]`).closest(".rollout").scrollIntoView({ block: "nearest" });
      }),
      h("ol", { class: "rollouts" }, items),
      this.told,
    ];
  }
}

const prompt = (text) => (text ? h("details", { class: "asked", open: true }, h("summary", {}, "Asked"), h("pre", {}, text)) : null);

/** What the model wrote, its tags set apart; a cut text tells its length. */
function completion({ text, characters, cut }) {
  if (!text.trim()) return h("p", { class: "empty" }, characters ? `It wrote ${counted(characters)} characters of white space.` : "It wrote nothing.");
  return [
    h("p", { class: "text" }, tagged(text)),
    cut ? h("p", { class: "cut" }, `Cut after ${counted(text.length)} of ${counted(characters)} characters.`) : null,
  ];
}

const malformed = (reason) => (reason ? h("p", { class: "malformed" }, `Malformed: ${reason}`) : null);

function turns(list) {
  return (list ?? []).map((turn) => [completion(turn.text),
    h("p", { class: "reply" }, `${turn.tools.length ? `Reply of ${turn.tools.join(", ")}` : "Reply"}: `, turn.reply.text)]);
}

function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value instanceof Element ? value : String(value)))));
}

/** Findings that a report names: found, missed, invented. */
function affirmed(line) {
  if (!Array.isArray(line.affirmed)) return null;
  const [said, present, absent] = [new Set(line.affirmed), new Set(line.present ?? []), new Set(line.absent ?? [])];
  const lists = [
    ["found", [...said].filter((name) => present.has(name))],
    ["missed", [...present].filter((name) => !said.has(name))],
    ["invented", [...said].filter((name) => absent.has(name))],
  ];
  return h("dl", { class: "affirmed" }, lists.map(([label, names]) =>
    h("div", { class: label }, h("dt", {}, label), h("dd", {}, names.sort().join(", ") || "–"))));
}

function rewards(verdicts) {
  const rows = Object.entries(verdicts ?? {});
  if (!rows.length) return h("p", { class: "empty" }, "No reward judged it.");
  return h("table", { class: "rewards" }, h("tbody", {}, rows.map(([name, one]) => h("tr", {},
    h("th", { scope: "row" }, name),
    h("td", { class: "num" }, one.value === null || one.value === undefined ? (one.unscored ?? "not scored").replaceAll("-", " ") : figure(one.value)),
    h("td", { class: "faint" }, one.reason, Object.entries(one.parts ?? {}).map(([part, value]) => ` ${part} ${figure(value)}`))))));
}

function balance(share) {
  const left = share >= 0 ? 50 : 50 + 50 * share;
  return h("div", { class: "balance", "aria-hidden": "true" },
    h("i", { class: share >= 0 ? "up" : "down", style: { left: `${left}%`, width: `${50 * Math.abs(share)}%` } }));
}

/** The reference report with its abnormal sentences marked; a patient's only where it may be shown. */
function report(line) {
  if (line.report_withheld) {
    return h("p", { class: "faint" }, "The reference report of a real patient is not shown. ", h("code", {}, "evid view RUN --show-reports"), " shows it.");
  }
  if (!line.report) return null;
  const pieces = [];
  let end = 0;
  for (const span of [...line.report.spans].sort((x, y) => x.start - y.start)) {
    if (span.start < end) continue;
    const characters = [...line.report.text]; // spans count characters, JavaScript half characters
    pieces.push(characters.slice(end, span.start).join(""),
      h("span", { class: span.label === "abnormal" ? "abnormal" : "" }, characters.slice(span.start, span.end).join("")));
    end = span.end;
  }
  pieces.push([...line.report.text].slice(end).join(""));
  return h("details", { class: "report" }, h("summary", {}, line.phantom ? "Reference report (phantom)" : "Reference report"), h("p", {}, pieces));
}
