"""The model card: what the model is, what it rests on, how well it does beside the reference lines."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from evidcore_plugin_pages.jinja import NOTICE
from evidcore_plugin_pages.markup import DASH, written
from evidcore_plugin_pages.tables import (
    REFERENCE_LINES,
    is_accuracy,
    is_detail,
    reference_lines,
    said,
    unit_of_row,
    with_tasks,
)
from huggingface_hub import ModelCardData

from evidcore import __version__
from evidcore.registry import downloads

Line = Mapping[str, Any]
UNKNOWN = "unknown"

_USE = """\
```python
import evidcore.model, transformers

parts = [{{"type": "image", "path": "scan.nii.gz"}}, {{"type": "text", "text": "Write the report."}}]
ask = transformers.pipeline("image-text-to-text", model="{folder}", generate_kwargs={{"do_sample": False}})
print(ask([{{"role": "user", "content": parts}}], return_full_text=False)[0]["generated_text"])
```

`import evidcore.model` tells transformers of the architecture. The scan is shown as in training; any volume
that evidcore reads will do. `AutoProcessor` takes such chats too, by `apply_chat_template(…, tokenize=True)`.
Nothing here looks whether the scan is like those of the training: `evid predict` does, in the model's run.
"""


_USE_PUBLISHED = """\
The folder has the form of the model that it began with, so transformers, vLLM and others read it without
evidcore, as they read that one. It was trained on slices as evidcore shows them; the recipe says which
window and how many pixels. `evid export` without `--format published` writes it with all that.
"""
Form = Literal["transformers", "published"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackageFacts:
    """One package whose components are in the model or shaped it."""

    name: str
    version: str
    licence: str  # of its code, as its metadata says it
    card: Mapping[str, Any]
    in_model: bool  # the model cannot be loaded without it


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
    results: Sequence[Line]  # of the stages that measured this very model
    packages: Sequence[PackageFacts]
    counts_words: bool  # the tokenizer's words were counted in the training texts
    recipe: str  # as published
    form: Form = "transformers"


def model_card(facts: ModelFacts) -> str:
    """Return README.md: the Hub's front matter and the text."""
    blocks = [
        f"---\n{_front_matter(facts)}\n---\n",
        f"# {facts.name}\n",
        f"**{NOTICE}**\n",
        _about(facts),
        "## Use\n",
        *([_USE_PUBLISHED] if facts.form == "published" else [_installing(facts), _USE.format(folder=".")]),
        "\n## Training\n",
        _training(facts),
        "## Figures\n",
        "\n".join(_figures(facts)),
        "## Intended use and limits\n",
        _limits(facts),
        "## Licences\n",
        "\n".join(_licences(facts)),
        "## Recipe\n",
        f"```toml\n{facts.recipe.rstrip()}\n```\n",
    ]
    return "\n".join(blocks)


def licence_of(facts: ModelFacts) -> str:
    """Return the licence that everything the model is made of is under; else it is unknown."""
    parts = {package.licence for package in facts.packages} | {data.licence for data in facts.datasets}
    if facts.language_is_pretrained or facts.encoder_is_pretrained:
        parts.add(UNKNOWN)
    return parts.pop().lower() if len(parts) == 1 else UNKNOWN


def _front_matter(facts: ModelFacts) -> str:
    phantom = all(data.is_phantom for data in facts.datasets)
    tags = ["evidcore", "medical", "radiology", "3d", "vision-language", *(["phantom"] if phantom else [])]
    data = ModelCardData(
        license=licence_of(facts),
        base_model=facts.base_model or None,
        library_name="transformers",
        pipeline_tag="image-text-to-text",
        tags=tags,
        datasets=[data.component for data in facts.datasets],
    )
    return str(data.to_yaml())


def _about(facts: ModelFacts) -> str:
    sizes = ", ".join(f"{part} {written(size, 'count')}" for part, size in facts.parameters.items())
    base = "weights from a folder, whose origin is not known here" if facts.language_is_pretrained else "none"
    if facts.base_model:
        base = f"`{facts.base_model}` at revision `{facts.base_revision}`"
    return textwrap.dedent(f"""\
        A vision-language model that reads 3D scans, trained with evidcore {__version__}.

        - Parameters: {sizes}
        - Base language model: {base}
        """)


def _installing(facts: ModelFacts) -> str:
    needed = [f"{item.name}=={item.version}" for item in facts.packages if item.in_model]
    return f"`pip install {' '.join(needed)}`, then in this folder, with a scan in `scan.nii.gz`:\n"


def _training(facts: ModelFacts) -> str:
    lines = [
        f"- Data `{data.name}`: `{data.component}`, fingerprint `{data.fingerprint}`"
        + (" (generated phantoms, no patients)" if data.is_phantom else "")
        for data in facts.datasets
    ]
    lines += [f"{number}. {line}" for number, line in enumerate(facts.stages, start=1)]
    return "\n".join([*lines[: len(facts.datasets)], "", *lines[len(facts.datasets) :], ""])


def _figures(facts: ModelFacts) -> Iterator[str]:
    """Yield a table for each stage that measured this model, its reference lines beside each accuracy."""
    if all(data.is_phantom for data in facts.datasets):
        yield "Every number here comes from generated phantoms, not from patients.\n"
    shown = [result for result in facts.results if result.get("rows")]
    if not shown:
        yield "Not measured: no evaluate or audit stage of the run came after its training.\n"
    for result in shown:
        yield f"### {result['stage']}\n"
        lines = list(REFERENCE_LINES.values())
        yield f"| what | metric | value | 95 % interval | {' | '.join(lines)} | questions | patients | note |"
        yield "|---|---|---|---|" + "---|" * (len(lines) + 3)
        rows = [row for row in with_tasks(result) if not is_detail(row)]
        yield from (_row(row, result) for row in rows if row["metric"] not in REFERENCE_LINES)
        for row in rows:
            if row["metric"] in REFERENCE_LINES:
                value = "not known" if row["value"] is None else written(row["value"], "rate")
                yield f"\n{row['name']}, {REFERENCE_LINES[row['metric']]}: {value}, {row['note']}"
        for task, verdict in (result.get("verdict") or {}).items():
            yield f"\n{task}: {verdict}"
        yield ""


def _row(row: Mapping[str, Any], result: Line) -> str:
    unit = unit_of_row(row)
    low, high = row.get("low"), row.get("high")
    known = reference_lines(row, result) if is_accuracy(row) else {}
    cells = [
        row["name"],
        said(str(row["metric"])),
        "not measured" if row["value"] is None else written(row["value"], unit),
        DASH if low is None or high is None else f"{written(low, unit)} to {written(high, unit)}",
        *(written(known[key], "rate") if key in known else "" for key in REFERENCE_LINES),
        row.get("questions") or "",
        row.get("patients") or "",
        row.get("note") or "",
    ]
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _limits(facts: ModelFacts) -> str:
    uses = sorted({str(item.card["intended_use"]) for item in facts.packages if "intended_use" in item.card})
    lines = [
        f"Intended use, as the cards of its packages say it: {', '.join(uses) or 'not stated'}. "
        "It must not be used for diagnosis, treatment or triage.",
        "An accuracy means nothing without the lines beside it: the best rule that never sees a scan reaches "
        '"best blind rule", and someone who sees every finding reaches "perfect eyes".',
    ]
    if facts.counts_words:
        lines.append(
            "The tokenizer's vocabulary holds the most frequent words of the training texts. Look through "
            "`tokenizer.json` before publishing a model of real reports."
        )
    return "\n\n".join(lines) + "\n"


def _licences(facts: ModelFacts) -> Iterator[str]:
    for item in facts.packages:
        yield f"- Code of `{item.name}` {item.version}: {item.licence}"
        for download in downloads(item.card):
            yield f"  - download: {download}"
    for data in facts.datasets:
        yield f"- Data `{data.component}`: {data.licence}"
    if facts.base_model:
        yield f"- Weights of `{facts.base_model}`: see its page on the Hub"
    elif facts.language_is_pretrained:
        yield f"- Weights that the language model began with: {UNKNOWN}; they came from a folder"
    if facts.encoder_is_pretrained:
        yield f"- Weights that the encoder began with: {UNKNOWN}; the recipe names them if public"
    if licence_of(facts) == UNKNOWN:
        yield "\nThese parts do not all state one licence, so none is stated for the model. Its author must."
    yield ""
