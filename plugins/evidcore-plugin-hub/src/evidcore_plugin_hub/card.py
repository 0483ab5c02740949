"""The model card: what the model is, what it rests on, how well it does beside the reference lines."""

import dataclasses
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Literal

from evidcore_plugin_pages import tables
from evidcore_plugin_pages.jinja import NOTICE
from evidcore_plugin_pages.markup import DASH, written
from huggingface_hub import ModelCard, ModelCardData

from evidcore import __version__
from evidcore.registry import downloads

UNKNOWN = "unknown"
Form = Literal["transformers", "published"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackageFacts:
    """One package whose components are in the model or shaped it."""

    name: str
    version: str
    licence: str  # of its code, as its metadata says it
    card: Mapping[str, Any]
    in_model: bool  # the model cannot be loaded without it

    @property
    def downloads(self) -> Sequence[str]:
        """Return what it fetches, each with its licence."""
        return downloads(self.card)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """One data set that the model saw."""

    name: str
    component: str
    fingerprint: str
    licence: str
    is_phantom: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Everything that a model card says."""

    name: str
    base_model: str  # on the Hub; empty: none there
    base_revision: str
    language_is_pretrained: bool  # it began with weights from elsewhere, from the Hub or a folder
    encoder_is_pretrained: bool
    parameters: Mapping[str, int]  # by part
    datasets: Sequence[DatasetFacts]
    stages: Sequence[str]  # one line each
    results: Sequence[Mapping[str, Any]]  # of the stages that measured this very model
    packages: Sequence[PackageFacts]
    counts_words: bool  # the tokenizer's words were counted in the training texts
    recipe: str  # as published
    form: Form = "transformers"


def model_card(facts: ModelFacts) -> str:
    """Return README.md: the Hub's front matter and the text."""
    only_phantoms = all(data.is_phantom for data in facts.datasets)
    tags = ["evidcore", "medical", "radiology", "3d", "vision-language", *["phantom"] * only_phantoms]
    front_matter = ModelCardData(
        license=licence_of(facts), base_model=facts.base_model or None, library_name="transformers",
        pipeline_tag="image-text-to-text", tags=tags, datasets=[data.component for data in facts.datasets],
    )  # fmt: skip
    uses = {str(item.card["intended_use"]) for item in facts.packages if "intended_use" in item.card}
    template = resources.files("evidcore_plugin_hub") / "templates" / "model_card.md"
    made = ModelCard.from_template(
        front_matter,
        template_str=template.read_text(encoding="utf-8"),
        facts=facts, notice=NOTICE, version=__version__, unknown=UNKNOWN, only_phantoms=only_phantoms,
        parameters=", ".join(f"{part} {written(size, 'count')}" for part, size in facts.parameters.items()),
        installs=" ".join(f"{item.name}=={item.version}" for item in facts.packages if item.in_model),
        tables=[_table(result) for result in facts.results if result.get("rows")],
        uses=", ".join(sorted(uses)), licence=licence_of(facts),
    )  # fmt: skip
    return str(made)


def licence_of(facts: ModelFacts) -> str:
    """Return the licence that everything the model is made of is under; else it is unknown."""
    parts = {package.licence for package in facts.packages} | {data.licence for data in facts.datasets}
    if facts.language_is_pretrained or facts.encoder_is_pretrained:
        parts.add(UNKNOWN)
    return parts.pop().lower() if len(parts) == 1 else UNKNOWN  # only people can combine licences


def _table(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a stage that measured this model, its reference lines beside each accuracy."""
    lines = list(tables.REFERENCE_LINES.values())
    rows = [
        f"| what | metric | value | 95 % interval | {' | '.join(lines)} | questions | patients | note |",
        "|---|---|---|---|" + "---|" * (len(lines) + 3),
    ]
    beside = []
    for row in (row for row in tables.with_tasks(result) if not tables.is_detail(row)):
        if row["metric"] not in tables.REFERENCE_LINES:
            rows.append(_row(row, result))
            continue
        value = "not known" if row["value"] is None else written(row["value"], "rate")
        beside.append(f"{row['name']}, {tables.REFERENCE_LINES[row['metric']]}: {value}, {row['note']}")
    beside += [f"{task}: {verdict}" for task, verdict in (result.get("verdict") or {}).items()]
    return {"stage": result["stage"], "rows": rows, "beside": beside}


def _row(row: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    unit, low, high = tables.unit_of_row(row), row.get("low"), row.get("high")
    known = tables.reference_lines(row, result) if tables.is_accuracy(row) else {}
    cells = [
        row["name"], tables.said(str(row["metric"])),
        "not measured" if row["value"] is None else written(row["value"], unit),
        DASH if low is None or high is None else f"{written(low, unit)} to {written(high, unit)}",
        *(written(known[key], "rate") if key in known else "" for key in tables.REFERENCE_LINES),
        *(row.get(key) or "" for key in ("questions", "patients", "note")),
    ]  # fmt: skip
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
