// The tree of a group: each rollout a line over its tokens, a fork below its parent, from where it leaves it.
import { figure, h, s } from "./dom.js";

const LANE_PX = 24;
const WIDEST = 78; // percent of the width for the longest rollout; labels stand behind

/** Return the tree of rollouts in their shown order; null where none was forked. `choose` is called with an index. */
export function forks(rollouts, choose) {
  if (!rollouts.some((one) => one.parent)) return null;
  const longest = Math.max(1, ...rollouts.map((one) => one.length));
  const at = (token) => `${((WIDEST * Math.min(token, longest)) / longest).toFixed(2)}%`;
  const order = [];
  const place = (parent) => {
    for (const one of rollouts) {
      if ((one.parent?.[0] ?? null) !== parent) continue;
      order.push(one);
      place(one.index);
    }
  };
  place(null);
  const rank = (index) => rollouts.findIndex((one) => one.index === index) + 1;
  const y = (one) => LANE_PX * (order.indexOf(one) + 0.5);
  const lanes = order.map((one) => {
    const [parent, start] = one.parent ?? [null, 0];
    const above = order.find((other) => other.index === parent);
    return s("g", { class: "branch", "data-rollout": one.index, onclick: () => choose(one.index) },
      s("rect", { x: 0, width: "100%", y: y(one) - LANE_PX / 2, height: LANE_PX, class: "hit" }),
      above ? s("line", { x1: at(start), x2: at(start), y1: y(above), y2: y(one), class: "fork" }) : null,
      s("line", { x1: at(start), x2: at(one.length), y1: y(one), y2: y(one), class: "tokens" }),
      s("text", { x: at(one.length), y: y(one) + 4, dx: 8 }, `#${rank(one.index)}  ${figure(one.total)}`));
  });
  const said = order.filter((one) => one.parent).map((one) => `#${rank(one.index)} leaves #${rank(one.parent[0])} at token ${one.parent[1]}`);
  return h("figure", { class: "forks" }, s("svg", { height: LANE_PX * order.length, width: "100%", role: "img", "aria-label": said.join("; ") }, lanes),
    h("figcaption", { class: "faint" }, "Tokens from left to right, then number and total. A fork shares what stands before it with its parent."));
}
