"""Med3D-R1's re-weighter `abnormality`: what each token of a training report weighs in the loss of SFT."""

import dataclasses
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from evidcore.errors import RunError
from evidcore.prompts.rows import PromptSource, prompt_sets
from evidcore.prompts.targets import Targets
from evidcore.registry.factory import offer_of
from mechanism_figures.panels import ORANGE, SKY, sheet
from mechanism_figures.run_stages import OpenedRun

LETTERS = 105  # of a line of the report
END = "end of turn"  # a token without letters


@dataclasses.dataclass(frozen=True)
class Weighted:
    """The tokens of a report with their weights, as SFT was given them."""

    case: str
    stage: str
    position: int  # in the stage's stream of rows
    tokens: Sequence[str]
    weights: Sequence[float]

    @property
    def heavy(self) -> list[bool]:
        """Tell which tokens weigh more than the lightest."""
        return [weight > min(self.weights) for weight in self.weights]

    @property
    def share(self) -> float:
        """Return the share of the loss's weights that lies on them."""
        return self._of(self.weights)

    @property
    def unweighted_share(self) -> float:
        """Return the same where all tokens weigh alike."""
        return self._of([1.0] * len(self.weights))

    def _of(self, weights: Sequence[float]) -> float:
        return sum(item for item, heavy in zip(weights, self.heavy, strict=True) if heavy) / sum(weights)


def measure(run: OpenedRun, case_id: str = "", rows: int = 200) -> Weighted:
    """Return the first row of the first SFT stage with two weights, as the stage makes it.

    Args:
        run: its stage `sft` has a re-weighter.
        case_id: a training case; empty: any.
        rows: how many are looked at.

    Raises:
        RunError: if none is found.
    """
    stage = run.stage("sft")
    context, table = run.context(stage), run.table(stage)
    _, processor = context.model()
    reweighter = context.component("reweighter", table.reweighter, "reweighter")
    source = PromptSource(prompt_sets(context, table.data), seed=run.recipe.seed, volumes=table.volumes)
    targets = Targets(processor, source, reweighter, offer_of(reweighter).package, table.strategy(context))
    for position in range(rows):
        row = source[position]
        if case_id not in ("", row.prompt.case.id):
            continue
        weights = targets.row(position).weights
        if len(set(weights)) > 1:
            text, _ = row.task.gold(row.prompt)
            offsets = processor.encode_answer(text).offsets
            tokens = [text[start:end] for start, end in offsets]
            last = weights[-len(tokens) :]  # of the last turn; those before it are weighed alike
            return Weighted(row.prompt.case.id, stage, position, tokens, last)
    whose = f"case {case_id!r}" if case_id else "any case"
    raise RunError(
        f"{run.folder.path}: the first {rows} rows of {stage} hold none of {whose} with several weights. "
        "Give a run that re-weighs, or another case."
    )


def draw(weighted: Weighted, told: str) -> Figure:
    """Draw the report, a box for each token in the colour of its weight, and what the weights add up to."""
    placed = _placed(weighted.tokens)
    lines = 1 + max(line for line, _, _ in placed)
    figure = sheet(2.15 + 0.2 * lines, "Med3D-R1: what the tokens of a training report weigh", told)
    page, shares = figure.subplots(2, 1, height_ratios=(0.2 * lines, 0.65))
    page.set(xlim=(0, LETTERS), ylim=(lines, 0))
    page.axis("off")
    for (line, start, shown), is_heavy in zip(placed, weighted.heavy, strict=True):
        colour = ORANGE if is_heavy else SKY
        page.add_patch(
            Rectangle((start, line + 0.06), len(shown), 0.88, color=colour, alpha=0.35, linewidth=0)
        )
        page.text(
            start + len(shown) / 2, line + 0.52, shown, ha="center", va="center", family="monospace",
            fontsize=7.8, style="italic" if shown == END else "normal",
        )  # fmt: skip
    _draw_shares(shares, weighted)
    return figure


def _placed(tokens: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return for each token its line, the letter at which it begins there, and what is shown."""
    result, line, end = list[tuple[int, int, str]](), 0, 0
    for token in tokens:
        shown = token.strip() or END
        start = end + (shown == END or token[:1].isspace()) if end else 0
        if start + len(shown) > LETTERS:
            line, start = line + 1, 0
        result.append((line, start, shown))
        end = start + len(shown)
    return result


def _draw_shares(axis: Axes, weighted: Weighted) -> None:
    """Draw the share of the loss's weights on abnormal sentences, without and with the re-weighter."""
    light, heavy = min(weighted.weights), max(weighted.weights)
    count = sum(weighted.heavy)
    names = (
        f"{heavy:.2f}: {count} tokens of abnormal sentences",
        f"{light:.2f}: the other {len(weighted.tokens) - count} tokens",
    )
    rows = {"all alike": weighted.unweighted_share, "re-weighted": weighted.share}
    for row, share in enumerate(rows.values()):
        told = names if row == 0 else ("", "")
        axis.barh(row, 100 * share, color=ORANGE, alpha=0.6, height=0.7, label=told[0])
        axis.barh(row, 100 * (1 - share), left=100 * share, color=SKY, alpha=0.6, height=0.7, label=told[1])
        axis.text(100 * share / 2, row, f"{100 * share:.1f} %", ha="center", va="center", fontsize=8)
    axis.set(
        yticks=range(len(rows)), yticklabels=rows, xlim=(0, 100), ylim=(1.5, -0.5),
        xlabel="share of the weights in the row's loss, %",
    )  # fmt: skip
    axis.legend(title="weight of a token", ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
