"""What all figures share: size, colours that the colour-blind can tell apart, titles, and the file."""

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image

# Okabe and Ito 2008, colours for all kinds of colour vision
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442"
GREY, INK = "#8a8f98", "#22262b"
WIDTH_IN, DPI = 8.0, 150  # shown 800 px wide, a point of text is 1.4 px
mpl.rcParams.update({
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
})


def sheet(height_in: float, title: str, told: str) -> Figure:
    """Return an empty figure under its title and the line that says of which run it is."""
    figure = pyplot.figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold")
    figure.text(0.01, 1 - 0.27 / height_in, told, ha="left", va="top", fontsize=7.5, color="#5b616a")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.38 / height_in))
    return figure


def printable(text: str) -> str:
    """Return a text with a dot for each character that no font draws; an untrained model writes such."""
    return "".join(item if item.isprintable() else "·" for item in text)


def save(figure: Figure, target: Path) -> None:
    """Write a figure as a PNG of 256 colours."""
    content = io.BytesIO()
    figure.savefig(content, dpi=DPI, format="png")
    pyplot.close(figure)
    image: Any = Image.open(content).convert("RGB")
    image.quantize(256, kmeans=3).save(target, optimize=True)
