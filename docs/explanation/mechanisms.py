"""Draw the mechanisms that the pages of this folder explain, each from what a run recorded.

    python docs/explanation/mechanisms.py gate RUN        a run of `make demo`: tokens and the gate
    python docs/explanation/mechanisms.py weights RUN     the same run: what the tokens of a report weigh
    python docs/explanation/mechanisms.py group RUN       the same run: completions, rewards, advantages
    python docs/explanation/mechanisms.py boxes RECIPE    recipes/medvol_r1.toml: its segmenter, by distance
    python docs/explanation/mechanisms.py slices RUN      of recipes/emrl.toml: what slices would be paid
    python docs/explanation/mechanisms.py forks RUN       of arm evr of recipes/ablations/medvr.toml: the tree

Each takes seconds, `boxes` three minutes of a core. --case names another scan than the module chooses, --out
another folder than this one. `mechanism_figures/` has a module for each: `measure` computes, `draw` draws.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure
from mechanism_figures import followed_boxes, fork_tree, gate_map, scored_group, slice_pay, token_weights
from mechanism_figures.panels import save
from mechanism_figures.run_stages import opened


def gate(source: Path, case: str) -> Figure:
    """Draw the tokens of a test scan before and after the gate, and the gates."""
    run = opened(source)
    found = gate_map.measure(run, case)
    return gate_map.draw(found, run.told(f"test scan {found.case}"))


def weights(source: Path, case: str) -> Figure:
    """Draw the weights of a training report's tokens."""
    run = opened(source)
    found = token_weights.measure(run, case)
    return token_weights.draw(found, run.told(f"row {found.position} of {found.stage}, case {found.case}"))


def group(source: Path, case: str) -> Figure:
    """Draw a group of GRPO with its scores."""
    run = opened(source)
    found = scored_group.measure(run, case)
    return scored_group.draw(found, run.told(f"step {found.step}, case {found.case}"))


def boxes(source: Path, case: str) -> Figure:
    """Draw how well a recipe's segmenter follows boxes; the case is the median one."""
    if case:
        raise SystemExit("boxes: draws the object of median Dice, and takes no --case")
    return followed_boxes.draw(followed_boxes.measure(source))


def slices(source: Path, case: str) -> Figure:
    """Draw what each slice of a test patient would be paid, and the slices that are cited."""
    run = opened(source)
    found = slice_pay.measure(run, case)
    return slice_pay.draw(found, run.told(f"test patient {found.case}"))


def forks(source: Path, case: str) -> Figure:
    """Draw the fork tree of a group."""
    run = opened(source, ["dataset.slices.annotated=true"])  # or there is no lesion to draw
    found = fork_tree.measure(run, case)
    return fork_tree.draw(found, run.told(f"step {found.step}, case {found.case}"))


FIGURES: Mapping[str, tuple[Callable[[Path, str], Figure], str]] = {
    "gate": (gate, "med3d_r1_gate.png"),
    "weights": (weights, "med3d_r1_weights.png"),
    "group": (group, "med3d_r1_group.png"),
    "boxes": (boxes, "medvol_r1_boxes.png"),
    "slices": (slices, "emrl_slices.png"),
    "forks": (forks, "medvr_forks.png"),
}


def main() -> None:
    """Draw one figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("source", type=Path, help="a run, or for `boxes` a recipe")
    parser.add_argument("--case", default="", help="a scan; empty: the module chooses and says how")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="the folder of the picture")
    asked = parser.parse_args()
    drawn, name = FIGURES[asked.figure]
    save(drawn(asked.source, asked.case), asked.out / name)


if __name__ == "__main__":
    main()
