// The questions of one or two sides, what may be asked of them, and the list.
import { get } from "./api.js";
import { counted, figure, h, percent, points, put } from "./dom.js";
import { place, side } from "./place.js";

const AT_ONCE = 150; // rows that are drawn before the reader scrolls on

/** Tell whether an answer is right; graded answers are from half on. */
export const isRight = (row) => row && (row.correct ?? (row.score === null ? null : row.score >= 0.5));

const ANSWER_FILTERS = [
  ["all", "all", () => true],
  ["wrong", "wrong", (pair) => isRight(pair.last) === false],
  ["broke", "broke", (pair) => isRight(pair.a) === true && isRight(pair.b) === false, "right in A, wrong in B"],
  ["mended", "mended", (pair) => isRight(pair.a) === false && isRight(pair.b) === true, "wrong in A, right in B"],
  ["malformed", "malformed", (pair) => Boolean(pair.a?.malformed || pair.b?.malformed)],
];
const GROUP_FILTERS = [
  ["all", "all", () => true],
  ["zero", "reward 0", (pair) => pair.a.rollouts > 0 && pair.a.zeros === pair.a.rollouts, "every rollout earned 0"],
  ["dead", "dead", (pair) => pair.a.spread !== null && pair.a.spread < 1e-9, "equal rewards: it taught nothing"],
  ["malformed", "malformed", (pair) => pair.a.malformed > 0, "at least one rollout cannot be read"],
];
const SORTS = {
  order: ["in the data's order", () => 0],
  change: ["largest change first", (x, y) => Math.abs(y.change ?? 0) - Math.abs(x.change ?? 0)],
  worst: ["lowest score first", (x, y) => (x.score ?? 9) - (y.score ?? 9)],
  spread: ["widest group first", (x, y) => (y.a.spread ?? 0) - (x.a.spread ?? 0)],
};

/** Return the filters that make sense now. */
function filters() {
  if (place.view === "rollouts") return GROUP_FILTERS;
  return ANSWER_FILTERS.filter(([name]) => place.b || !["broke", "mended"].includes(name));
}

/** Holds the rows of the chosen sides, joined by question. */
export class Questions {
  pairs = [];
  shown = [];
  found = null; // line numbers of side A in which the searched words occur; null: nothing is searched

  /** Read the rows of the sides that the place names. */
  async load() {
    const kind = place.view;
    const [a, b] = [side(place.a), kind === "answers" ? side(place.b) : null];
    const [first, second] = await Promise.all([a && this.rows(a, kind), b && this.rows(b, kind)]);
    this.pairs = (first ?? []).map((row) => ({ key: row.key, a: row, b: null }));
    if (second) {
      const byQuestion = new Map();
      for (const row of second) {
        const question = `${row.task}\n${row.prompt}`;
        if (!byQuestion.has(question)) byQuestion.set(question, row); // the first of several exchanges is shown
      }
      this.pairs = this.pairs.map((pair) => ({ ...pair, b: byQuestion.get(`${pair.a.task}\n${pair.a.prompt}`) ?? null }));
      this.pairs = this.pairs.filter((pair) => pair.b);
    }
    for (const pair of this.pairs) {
      pair.last = pair.b ?? pair.a;
      pair.score = kind === "answers" ? pair.last.score : pair.a.mean;
      pair.change = pair.b && pair.a.score !== null && pair.b.score !== null ? pair.b.score - pair.a.score : null;
    }
    await this.search();
  }

  async rows(of, kind) {
    const rows = await get("rows", { run: of.run, kind, stage: of.stage });
    return rows
      .map((row, number) => ({ ...row, number, key: `${row.task}/${row.prompt}${kind === "rollouts" ? `@${row.step}` : ""}` }))
      .filter((row) => kind === "rollouts" || row.condition === of.condition);
  }

  /** Look for the searched words in the texts of either side. */
  async search() {
    this.found = null;
    if (place.words) {
      const sides = ["a", "b"].filter((name) => side(place[name]) && !(name === "b" && place.view === "rollouts"));
      const hits = await Promise.all(sides.map((name) => {
        const { run, stage } = side(place[name]);
        return get("search", { run, kind: place.view, stage, words: place.words });
      }));
      this.found = Object.fromEntries(sides.map((name, index) => [name, new Set(hits[index])]));
    }
    this.choose();
  }

  /** Apply filters and order. */
  choose() {
    const chosen = filters().find(([name]) => name === place.show) ?? filters()[0];
    this.shown = this.pairs.filter((pair) =>
      chosen[2](pair)
      && (!place.finding || pair.a.findings.includes(place.finding))
      && (!place.task || pair.a.task === place.task)
      && (!place.patient || `${pair.a.patient ?? ""} ${pair.a.case}`.includes(place.patient))
      && (!this.found || ["a", "b"].some((name) => pair[name] && this.found[name]?.has(pair[name].number))));
    const order = SORTS[place.sort] ?? SORTS.order;
    if (place.sort !== "order") this.shown = this.shown.toSorted(order[1]);
  }

  /** Return the chosen question, the first one where none is chosen. */
  current() {
    return this.pairs.find((pair) => pair.key === place.at) ?? this.shown[0] ?? null;
  }

  /** Return the question some steps further down the list. */
  beside(steps) {
    const index = this.shown.findIndex((pair) => pair.key === this.current()?.key);
    return this.shown[Math.max(0, Math.min(this.shown.length - 1, index + steps))] ?? null;
  }

  /** Return how each finding fared: [finding, questions, share right in A, in B]. */
  byFinding() {
    const found = new Map();
    for (const pair of this.pairs) {
      if (place.task && pair.a.task !== place.task) continue;
      for (const name of pair.a.findings) {
        if (!found.has(name)) found.set(name, []);
        found.get(name).push(pair);
      }
    }
    const mean = (pairs, name) => {
      const scores = pairs.map((pair) => pair[name]?.score ?? null).filter((score) => score !== null);
      return scores.length ? scores.reduce((sum, score) => sum + score, 0) / scores.length : null;
    };
    return [...found].map(([name, pairs]) => [name, pairs.length, mean(pairs, "a"), mean(pairs, "b")]);
  }
}

/** Draws the list and its filters; `go` is called with what changes. */
export class QuestionList {
  constructor(root, questions, runs, go) {
    Object.assign(this, { root, questions, runs, go });
  }

  draw() {
    const { questions } = this;
    const answers = place.view === "answers";
    const tasks = [...new Set(questions.pairs.map((pair) => pair.a.task))].sort();
    const findings = [...new Set(questions.pairs.flatMap((pair) => pair.a.findings))].sort();
    const sorts = Object.entries(SORTS).filter(([name]) =>
      (name !== "change" || place.b) && (name !== "spread" || !answers));
    this.rows = h("ol", { class: "rows", tabindex: "-1" });
    put(this.root, 
      h("div", { class: "sides" }, this.sidePicker("a"), answers ? this.sidePicker("b") : null),
      h("div", { class: "chips", role: "group", "aria-label": "Show" }, filters().map(([name, label, , title]) => h("button", {
        type: "button", title, "aria-pressed": String((filters().some(([one]) => one === place.show) ? place.show : "all") === name),
        "data-show": name, onclick: () => this.go({ show: name }),
      }, label))),
      h("div", { class: "picks" },
        this.select("finding", "Finding", [["", "every finding"], ...findings.map((name) => [name, name])]),
        tasks.length > 1 ? this.select("task", "Task", [["", "every task"], ...tasks.map((name) => [name, name])]) : null,
        this.select("sort", "Order", sorts.map(([name, [label]]) => [name, label])),
        this.input("patient", answers ? "Patient or case" : "Case"),
        this.input("words", "Search in texts  ( / )")),
      this.findings(),
      h("p", { class: "count" }, h("b", {}, counted(questions.shown.length)), ` of ${counted(questions.pairs.length)} `,
        answers ? "questions" : "groups", h("span", { class: "faint keys" }, h("kbd", {}, "j"), h("kbd", {}, "k"), " to walk")),
      this.rows,
    );
    this.drawn = 0;
    this.extend();
    this.rows.addEventListener("scroll", () => {
      if (this.rows.scrollTop + this.rows.clientHeight > this.rows.scrollHeight - 400) this.extend();
    });
    this.mark();
  }

  extend(least = AT_ONCE) {
    const next = this.questions.shown.slice(this.drawn, this.drawn + least);
    this.rows.append(...next.map((pair) => this.row(pair)));
    this.drawn += next.length;
    if (!this.drawn) this.rows.append(h("li", { class: "empty" }, "Nothing here fits these filters."));
  }

  row(pair) {
    const about = pair.a.findings.join(", ") || pair.a.task;
    const verdicts = place.view === "answers"
      ? [verdict(pair.a), pair.b ? [h("span", { class: "faint", "aria-hidden": "true" }, "→"), verdict(pair.b)] : null]
      : [h("span", { class: "mark" }, figure(pair.a.mean, 2)), h("span", { class: "faint" }, `±${figure(pair.a.spread, 2)}`)];
    const told = place.view === "answers"
      ? (pair.change ? points(pair.change) : "")
      : `step ${pair.a.step}`;
    return h("li", {}, h("a", { href: "#", "data-key": pair.key, onclick: (event) => {
      event.preventDefault();
      this.go({ at: pair.key }, { step: true });
    } },
    h("span", { class: "verdicts" }, verdicts),
    h("span", { class: "about" }, about, h("small", {}, pair.a.case, pair.last.malformed ? " · malformed" : "")),
    h("span", { class: "told" }, told)));
  }

  /** Mark the chosen question and bring it into view. */
  mark() {
    const key = this.questions.current()?.key;
    const index = this.questions.shown.findIndex((pair) => pair.key === key);
    if (index >= this.drawn) this.extend(index - this.drawn + AT_ONCE);
    for (const link of this.rows.querySelectorAll("a")) {
      const is = link.dataset.key === key;
      link.toggleAttribute("aria-current", is);
      if (is) link.setAttribute("aria-current", "true");
      if (is) {
        const [top, height] = [link.offsetTop - this.rows.offsetTop, this.rows.clientHeight];
        if (top < this.rows.scrollTop) this.rows.scrollTop = top - 8;
        if (top + link.offsetHeight > this.rows.scrollTop + height) this.rows.scrollTop = top + link.offsetHeight - height + 8;
      }
    }
  }

  /** Choose the stage of a side, and the condition that was shown. */
  sidePicker(name) {
    const several = Object.keys(this.runs).length > 1;
    const options = Object.entries(this.runs).flatMap(([key, run]) => run[place.view].map(({ stage }) =>
      [`${key}:${stage}`, several ? `${key.toUpperCase()} · ${stage}` : stage]));
    const chosen = side(place[name]);
    const value = chosen ? `${chosen.run}:${chosen.stage}` : "";
    const choice = h("select", { id: `side-${name}`, onchange: (event) => this.go({
      [name]: event.target.value && (place.view === "answers" ? `${event.target.value}:own` : event.target.value), at: place.at,
    }) }, name === "b" ? h("option", { value: "" }, "nothing beside it") : null,
    options.map(([key, label]) => h("option", { value: key, selected: key === value }, label)));
    const conditions = (chosen && this.conditions?.[`${chosen.run}:${chosen.stage}`]) ?? [];
    return h("label", {}, h("span", { class: `letter ${name}` }, name.toUpperCase()), choice,
      conditions.length > 1 ? h("select", { "aria-label": `Volume shown, side ${name.toUpperCase()}`, onchange: (event) => this.go({
        [name]: `${value}:${event.target.value}`,
      }) }, conditions.map((one) => h("option", { value: one, selected: one === chosen.condition }, one))) : null);
  }

  select(key, label, options) {
    return h("label", { class: "pick" }, h("span", {}, label), h("select", {
      "data-pick": key, onchange: (event) => this.go({ [key]: event.target.value }),
    }, options.map(([value, text]) => h("option", { value, selected: value === place[key] }, text))));
  }

  input(key, label) {
    return h("input", { type: "search", "data-pick": key, placeholder: label, "aria-label": label, value: place[key],
      onchange: (event) => this.go({ [key]: event.target.value.trim() }) });
  }

  /** A table of how each finding fared; a click shows its questions. */
  findings() {
    if (place.view !== "answers") return null;
    const rows = this.questions.byFinding();
    if (rows.length < 2) return null;
    const two = Boolean(place.b);
    rows.sort((x, y) => (two ? (x[3] - x[2]) - (y[3] - y[2]) : x[2] - y[2]));
    return h("details", { class: "findings", open: this.open, ontoggle: (event) => { this.open = event.target.open; } },
      h("summary", {}, "By finding"),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "By finding" }, h("table", {},
        h("thead", {}, h("tr", {}, ["", "n", "A", two ? "B" : null, two ? "change" : null]
          .filter((name) => name !== null).map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, rows.map(([name, count, a, b]) => h("tr", {},
          h("th", { scope: "row" }, h("button", { type: "button", class: "plain", onclick: () => this.go({ finding: name }) }, name)),
          h("td", {}, count), h("td", {}, percent(a)), two ? h("td", {}, percent(b)) : null,
          two ? h("td", { class: b < a ? "bad" : b > a ? "good" : "" }, points(a === null || b === null ? null : b - a)) : null))))));
  }
}

/** Return a mark for right, wrong or a score. */
export function verdict(row) {
  if (row.correct === null) return h("span", { class: "mark", title: "score" }, row.score === null ? "–" : figure(row.score, 2));
  return row.correct
    ? h("span", { class: "mark right", title: "right" }, h("span", { "aria-hidden": "true" }, "✓"), h("span", { class: "unseen" }, "right"))
    : h("span", { class: "mark wrong", title: "wrong" }, h("span", { "aria-hidden": "true" }, "✕"), h("span", { class: "unseen" }, "wrong"));
}
