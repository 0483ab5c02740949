"""What is asked about a case, and which of its masks answer: queries that came along, or each mask."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.api import Case, DataError
from evidcore.case import Query


def given(case: Case) -> Sequence[Query]:
    """Return the queries that came with a case.

    Raises:
        DataError: if a query names a mask that the case lacks; names both.
    """
    for query in case.queries:
        if missing := next((name for name in query.masks if name not in case.masks), None):
            listing = ", ".join(sorted(case.masks)) or "none"
            raise DataError(
                f"case {case.id!r}: query {query.id!r} is answered by mask {missing!r}, which the case lacks."
                f" It has: {listing}. Correct the data set."
            )
    return case.queries


def by_mask(
    case: Case, names: Sequence[str], descriptions: Mapping[str, Sequence[str]], seed: int
) -> list[Query]:
    """Ask for each mask of a case: by its name, or by one of its descriptions.

    Names are matched whether they are written in capitals or not, as sets differ in it; without names all
    masks are asked about. `descriptions` are texts, of which one is drawn, by mask name in small letters.
    """
    by_name = {name.lower(): name for name in case.masks}
    result = []
    for name in [by_name[item.lower()] for item in names if item.lower() in by_name] if names else case.masks:
        spoken = name.replace("_", " ")
        texts = descriptions.get(name.lower()) or descriptions.get(spoken.lower()) or (f"the {spoken}",)
        text = random.Random(f"reasoning-segmentation/{seed}/{case.id}/{name}").choice(texts)
        result.append(Query(id=name, text=text, masks=(name,)))
    return result


def read_descriptions(path: Path) -> dict[str, tuple[str, ...]]:
    """Read a JSON file of mask names with their descriptions, as M3D's `term_dictionary.json`.

    Returns:
        Texts by mask name in small letters; those of names that differ in capitals alone, together.

    Raises:
        DataError: if it cannot be used; names the file and the entry.
    """
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as cause:
        raise DataError(
            f"{path}: cannot be read as JSON ({cause}). Give descriptions = 'FILE', an object of mask names "
            'with a list of texts each, {"liver": ["the largest gland"]}.'
        ) from cause
    if not isinstance(table, dict):
        raise DataError(f"{path}: must be an object of mask names, got {type(table).__name__}.")
    result: dict[str, tuple[str, ...]] = {}
    for name, texts in table.items():
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"{path}: {name!r} must have a list of texts, got {json.dumps(texts)[:60]}. "
                "Correct the entry."
            )
        result[name.lower()] = (*result.get(name.lower(), ()), *texts)
    return result
