"""Which cases the page shows, and what the data sets know about them."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evidcore.api import Case, Crop
from evidcore.cache import cache_folder, looking_only
from evidcore.case import Split
from evidcore.runs.read import lines
from evidcore_plugin_pages.record import Line, RunRecord, is_phantom

_SPLITS: tuple[Split, ...] = ("test", "validation", "train")
_LAST, _FIRST = "The widest group of the last step", "The widest group of the first step"
_MALFORMED = "The widest group with a malformed answer"
_DEAD = "A dead group: equal rewards, so it taught nothing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """A group of rollouts and why it is shown."""

    why: str
    line: Line


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """One evaluation question with its answers by condition, and why it is shown."""

    why: str
    answers: Mapping[str, Line]  # condition -> answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """A case and whether it was generated."""

    case: Case
    phantom: bool


def chosen_groups(path: Path) -> list[Group]:
    """Choose groups of one stage in a single pass over its file.

    The first and the last step give the group whose totals differ most; beside them come the widest group
    with a malformed answer and the last one in which all answers earned the same.
    """
    best: dict[str, tuple[tuple[float, ...], Line]] = {}
    for number, line in enumerate(lines(path)):
        if not line.get("rollouts"):
            continue
        spread = statistics.pstdev(float(item.get("total") or 0.0) for item in line["rollouts"])
        ranks: dict[str, tuple[float, ...]] = {_LAST: (line["step"], spread), _FIRST: (-line["step"], spread)}
        if any(item.get("malformed") for item in line["rollouts"]):
            ranks[_MALFORMED] = (spread,)
        if spread < 1e-9:
            ranks[_DEAD] = (number,)
        best |= {why: (rank, line) for why, rank in ranks.items() if why not in best or rank > best[why][0]}
    groups: list[Group] = []
    for why in (_LAST, _FIRST, _MALFORMED, _DEAD):
        if why in best and all(best[why][1] is not group.line for group in groups):
            groups.append(Group(why=why, line=best[why][1]))
    return groups


def by_question(answers: Iterable[Line]) -> dict[tuple[str, str], dict[str, Line]]:
    """Return the answers of one stage as (task, prompt) -> condition -> answer."""
    result: dict[tuple[str, str], dict[str, Line]] = {}
    for line in answers:
        key = (str(line.get("task", "")), str(line["prompt_id"]))
        # volumes may be exchanged several times; the first exchange is shown
        result.setdefault(key, {}).setdefault(str(line.get("condition", "own")), line)
    return result


def pattern(answers: Mapping[str, Line]) -> str | None:
    """Return in words how a question fared with its own and with another patient's volume."""
    own, other = answers.get("own"), answers.get("other-patient")
    if own is None or own.get("correct") is None:
        return None
    if other is None or other.get("correct") is None:
        return "right" if own["correct"] else "wrong"
    if own["correct"]:
        return "right either way" if other["correct"] else "right only with its own volume"
    return "right only with another patient's volume" if other["correct"] else "wrong either way"


def chosen_answers(answers: Iterable[Line], most: int = 4) -> list[Asked]:
    """Choose questions of one stage: one of each pattern, in the order of the file."""
    wanted = [
        "right only with its own volume", "wrong either way", "right either way",
        "right only with another patient's volume", "right", "wrong", None,
    ]  # fmt: skip
    result: dict[str | None, Asked] = {}
    cases: set[str] = set()
    for asked in by_question(answers).values():
        kind = pattern(asked)
        case = str(next(iter(asked.values())).get("case_id"))
        if kind not in result and case not in cases:
            why = "An answer" if kind is None else f"{kind[0].upper()}{kind[1:]}"
            result[kind] = Asked(why=why, answers=asked)
            cases.add(case)
    return [result[kind] for kind in wanted if kind in result][:most]


def look_up(record: RunRecord, shown: Iterable[Line]) -> tuple[dict[str, Known], list[str]]:
    """Find the cases of answers or groups in the run's data sets.

    Cases whose volumes are gone are left alone: opening a data set for them might generate it again.

    Returns:
        The cases by id, and a sentence for each data set that could not be opened.
    """
    wanted: dict[tuple[str, str], set[str]] = {}
    for line in shown:
        if _volume_is_there(line):
            for place in _places(record, line):
                wanted.setdefault(place, set()).add(str(line["case_id"]))
    known: dict[str, Known] = {}
    faults: dict[str, str] = {}
    for (name, split), ids in wanted.items():
        table = record.recipe["dataset"].get(name)
        if table is None or name in faults or not ids - known.keys():
            continue
        try:
            with looking_only():
                for case in _cases(record, name, table, split):
                    if case.id in ids:
                        known[case.id] = Known(case=case, phantom=is_phantom(str(table["use"])))
                        if ids <= known.keys():
                            break
        except Exception as cause:  # the page must come out whatever a data set does; it names the fault
            faults[name] = f"Data set {name!r} could not be read: {cause}"
    return known, list(faults.values())


def _volume_is_there(line: Line) -> bool:
    for uri in line.get("images") or ():
        try:
            if Path(Crop.parse_uri(uri).volume.path).exists():  # else its data set might generate it
                return True
        except ValueError:
            continue
    return False


def _places(record: RunRecord, line: Line) -> list[tuple[str, str]]:
    """Return the data sets and splits that a line's stage asked its task on; all if its recipe says none."""
    table = record.stage_table(str(line.get("stage", "")))
    asked = [entry for entry in table.get("data", ()) if entry.get("task", line["task"]) == line["task"]]
    places = [(str(entry["dataset"]), str(entry.get("split", "train"))) for entry in asked]
    return places or [(name, split) for split in _SPLITS for name in record.recipe.get("dataset", {})]


def _cases(record: RunRecord, name: str, table: Mapping[str, Any], split: str) -> Iterable[Case]:
    import evidcore.contracts  # torch: only where a case has to be looked up
    from evidcore.registry import factory

    recipe_folder = Path(record.recipe.get("recipe_folder", record.folder))
    given = {"recipe_folder": recipe_folder, "cache_folder": cache_folder()}
    made: evidcore.contracts.Dataset = factory.build("dataset", table, given=given, where=f"dataset.{name}")
    return made.cases(split)  # type: ignore[arg-type]  # the recipe was checked
