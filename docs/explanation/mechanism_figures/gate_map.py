"""Med3D-R1's bridge `residual-alignment`: the visual tokens of a scan before and after its gate."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from evidcore_plugin_med3d_r1.bridge import ResidualAlignment
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.nn import functional

from evidcore.errors import RunError
from mechanism_figures.panels import BLUE, GREY, sheet
from mechanism_figures.run_stages import OpenedRun

SHOWN_WINDOW = 1  # of the encoder's: soft tissue, in its defaults
CLOSED, OPEN = 0.9, 0.1  # a gate above is shut, one below is open


@dataclasses.dataclass(frozen=True)
class Gated:
    """The tokens of a scan; grids are (z, y, x), similarities are cosines."""

    case: str
    scan: np.ndarray  # (channel, z, y, x), what the encoder is given: a window each, -1 to 1
    grid_zyx: tuple[int, int, int]
    gate: np.ndarray  # (token, channel), 0 lets the pixels through, 1 puts the anchor in their place
    before: np.ndarray  # (token,), similarity with the anchor
    after: np.ndarray

    @property
    def between_channels(self) -> float:
        """Return the share of the gate's variance that is between channels, whatever the place."""
        return float(self.gate.mean(axis=0).var() / self.gate.var())

    def over_grid(self, values: np.ndarray) -> np.ndarray:
        """Return a value for each token as (z, y, x)."""
        return values.reshape(self.grid_zyx)


def measure(run: OpenedRun, case_id: str = "") -> Gated:
    """Run the trained model over a test scan and listen to its bridge.

    Args:
        run: whose last stage that trains left the model.
        case_id: a test case; empty: the first.

    Raises:
        RunError: if the bridge has no gate, or there is no such case.
    """
    policy = run.context(run.trained, after=True).local_policy()
    bridge = policy.model.model.bridge
    if not isinstance(bridge, ResidualAlignment):
        raise RunError(f"{run.folder.path}: its bridge is {type(bridge).__name__}, which has no gate.")
    cases = [case for name in run.assembly.datasets for case in run.assembly.split(name, "test")]
    case = next((item for item in cases if case_id in ("", item.id)), None)
    if case is None:
        raise RunError(
            f"{run.folder.path}: no test case is called {case_id!r}, the first is {cases[0].id!r}."
        )
    (prompt, *_) = next(iter(run.assembly.tasks.values())).prompts(case, run.assembly.view, 0)
    handle = policy.processor.image_processor.handle(prompt.crops()[0])
    heard: dict[str, torch.Tensor] = {}
    hooks = [
        bridge.projection.register_forward_hook(lambda _, __, given: heard.update(tokens=given)),
        bridge.gate_out.register_forward_hook(lambda _, __, given: heard.update(gate=given)),
    ]
    with policy.asking():
        policy.model.model.get_image_features(torch.tensor([[handle]]))
        tokens, gate = heard["tokens"][0].float(), torch.sigmoid(heard["gate"])[0].float()
        after = bridge.mix(heard["tokens"])[0].float()
    for hook in hooks:
        hook.remove()
    bank = policy.model.model.bank
    anchor = bridge.anchor / bridge.scale
    grid = bridge.projection.pooling.grid(policy.model.model.encoder.grid(bank.size_zyx(handle)))
    return Gated(
        case=case.id,
        scan=bank.pixels([handle])[0].numpy(),
        grid_zyx=grid,
        gate=gate.numpy(),
        before=functional.cosine_similarity(tokens, anchor, dim=-1).numpy(),
        after=functional.cosine_similarity(after, anchor, dim=-1).numpy(),
    )


def draw(gated: Gated, told: str) -> Figure:
    """Draw the scan, the gate's mean and both similarities over the grid of tokens, and all gates."""
    layers = gated.grid_zyx[0]
    figure = sheet(5.3, "Med3D-R1: the visual tokens of a scan before and after the gate", told)
    left, right = figure.subfigures(1, 2, width_ratios=(1.0, 0.8))
    axes = left.subplots(4, layers, squeeze=False, gridspec_kw={"wspace": 0.0, "hspace": 0.0})
    most = max(abs(gated.before).max(), abs(gated.after).max())
    rows = (
        ("scan", None, {}),
        ("mean gate, %", gated.gate.mean(axis=1), {"cmap": "cividis", "vmin": 0, "vmax": 1}),
        ("cosine x 100,\nbefore", gated.before, {"cmap": "PuOr_r", "vmin": -most, "vmax": most}),
        ("cosine x 100,\nafter", gated.after, {"cmap": "PuOr_r", "vmin": -most, "vmax": most}),
    )
    scan = gated.scan[min(SHOWN_WINDOW, len(gated.scan) - 1)]
    thick = len(scan) / layers  # slices of the encoder's input in a layer
    for row, (name, values, colours) in enumerate(rows):
        for layer, axis in enumerate(axes[row]):
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if values is None:
                axis.imshow(scan[int((layer + 0.5) * thick)], cmap="gray", vmin=-1, vmax=1)
                axis.set_title(f"z layer {layer + 1} of {layers}", loc="center", fontsize=8)
            else:
                _numbered(axis, gated.over_grid(values)[layer], colours)
        axes[row, 0].set_ylabel(name, fontsize=8)
    channels, spread = right.subplots(2, 1, height_ratios=(1.5, 1))
    order = np.argsort(gated.gate.mean(axis=0))
    drawn = channels.imshow(
        gated.gate[:, order], cmap="cividis", vmin=0, vmax=1, aspect="auto", interpolation="nearest"
    )
    right.colorbar(drawn, ax=channels, label="gate: 0 pixels, 1 anchor", shrink=0.9)
    shut, wide = (gated.gate > CLOSED).mean(), (gated.gate < OPEN).mean()
    channels.set(
        xlabel="channel, by its mean gate",
        ylabel="token, in z, y, x order",
        title=f"{100 * shut:.0f} % of gates above {CLOSED:g}, {100 * wide:.0f} % below {OPEN:g};\n"
        f"{100 * gated.between_channels:.0f} % of their variance lies between channels",
    )
    bins = np.linspace(-most, most, 41)
    for name, values, colour in (("before", gated.before, GREY), ("after", gated.after, BLUE)):
        spread.hist(values, bins, color=colour, alpha=0.75, label=name)
    spread.set(
        xlabel="cosine of a token with the anchor",
        ylabel="tokens",
        title=f"mean cosine {gated.before.mean():.2f} before and {gated.after.mean():.2f} after",
    )
    spread.legend(loc="upper left")
    return figure


def _numbered(axis: Axes, values: np.ndarray, colours: Mapping[str, Any]) -> None:
    """Draw a layer of tokens, each with its value in hundredths."""
    drawn = axis.imshow(values, **colours)
    for (y, x), value in np.ndenumerate(values):
        red, green, blue, _ = drawn.cmap(drawn.norm(value))
        is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axis.text(
            x, y, f"{round(100 * value)}", ha="center", va="center", fontsize=7, color="w" if is_dark else "k"
        )
