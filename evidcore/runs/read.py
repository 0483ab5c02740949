"""A run folder as it lies on disk, by whomever it was written; nothing in it is imported or executed.

This is the one door to a run: it follows no link but those to the run's own stages, reads plain files alone,
each whole file and line up to a bound, and says by name what is not as evidcore writes it.
"""

import json
import logging
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import GenericAlias
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from evidcore.cache import plain_file
from evidcore.compute.signals import is_locked
from evidcore.errors import RunError

MOST_BYTES = 2**28  # of a line
_LINKED = ("checkpoints", "rollouts", "answers")  # folders whose entries may be links to stages
_SURROGATE = re.compile(rb"((?<!\\)(?:\\\\)*)\\u[dD][89a-fA-F]\w\w")  # pydantic refuses half a pair
log = logging.getLogger(__name__)


def _form(**fields: Any) -> type[BaseModel]:
    """Return the form of an object: type and default of its values by key; other keys may hold anything."""
    return create_model("form", __config__=ConfigDict(strict=True, allow_inf_nan=False), **fields)


_IS_TEXT, _IS_COUNT = (str, ...), (int, ...)  # others may be left out, or null
_NUMBER, _TEXT, _COUNT = (float | None, None), (str | None, None), (int | None, None)
_TABLE, _TEXTS, _TABLES = (dict[str, Any] | None, None), (list[str] | None, None), (list[dict[str, Any]], ())
_ROW = _form(
    name=_IS_TEXT, metric=_IS_TEXT, value=(float | None, ...), low=_NUMBER, high=_NUMBER, questions=_COUNT,
    patients=_COUNT, task=_TEXT, condition=_TEXT, note=_TEXT,
)  # fmt: skip
_VERDICT = _form(value=(float | None, ...), reason=_IS_TEXT)
_ROLLOUT = _form(
    text=_IS_TEXT, total=(float | None, ...), rewards=(GenericAlias(dict, (str, _VERDICT)), ...),
    advantage=_NUMBER, length=_COUNT, parent=(list[int] | None, None),
    turns=(GenericAlias(list, (_form(actions=_TABLES),)) | None, None),
)  # fmt: skip
_STAGES = (GenericAlias(list, (_form(data=_TABLES),)), ())
_RECIPE = _form(dataset=(dict[str, dict[str, Any]], {}), stage=_STAGES, observers=_TEXTS)
_RESULT = _form(
    stage=_IS_TEXT, kind=_IS_TEXT, rows=(GenericAlias(list, (_ROW,)), ...), inputs=_TEXT, figures=_TABLE,
    verdict=(dict[str, str] | None, None), took_s=_NUMBER,
    reference_lines=(dict[str, dict[str, float | None]] | None, None),
)  # fmt: skip
_FORMS = {  # by a file's name, or its folder's
    "": _form(),
    "inputs.json": _form(upstream=(dict[str, str], {})),
    "STATUS": _form(state=_TEXT, stage=_TEXT, step=_COUNT, message=_TEXT, time=_TEXT, pid=_COUNT),
    "recipe.toml": _RECIPE, "resolved.toml": _RECIPE, "results": _RESULT, "result.json": _RESULT,
    "lock.toml": _form(package=_TABLE, dataset=_TABLE, versions=_TABLE, hardware=_TABLE, run=_TABLE),
    "metrics.jsonl": _form(stage=_IS_TEXT, step=_IS_COUNT, time_s=_NUMBER),
    "answers": _form(
        task=_IS_TEXT, prompt_id=_IS_TEXT, case_id=_IS_TEXT, text=_IS_TEXT, images=_TEXTS, affirmed=_TEXTS,
        present=_TEXTS, absent=_TEXTS, condition=_TEXT, finding=_TEXT,
    ),
    "rollouts": _form(
        step=_IS_COUNT, task=_IS_TEXT, case_id=_IS_TEXT, images=_TEXTS, reference=_TABLE,
        rollouts=(GenericAlias(list, (_ROLLOUT,)), ...),
    ),
}  # fmt: skip


def refuse_strange(folder: Path) -> None:
    """Refuse a run that holds anything but files, folders and links to the stages beside it.

    Else a run from elsewhere could have a command read or write any file of whoever looks at it.
    """
    home = folder.resolve()
    waiting = [home]
    for path in waiting:
        try:
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                waiting += path.iterdir()
                continue
        except FileNotFoundError:  # a process that runs it has just moved it
            continue
        may_link = path.parent.parent == home and path.parent.name in _LINKED
        if may_link and path.resolve().is_relative_to(home.parent / "stages"):
            waiting.append(path.resolve())
        elif not stat.S_ISREG(mode):
            what = f"a link to {path.readlink()}" if stat.S_ISLNK(mode) else "neither a file nor a folder"
            raise RunError(
                f"{path}: is {what}. A run holds files, folders and links to the stages beside it: whoever "
                "made this could have a command read or write there. Remove it if you trust the rest."
            )


def refuse_moved(folder: Path) -> None:
    """Refuse a run that was taken away from the stages that it links to."""
    links = [path for name in _LINKED for path in (folder / name).glob("*")]
    astray = sorted(path for path in links if not path.exists())
    if astray:
        raise RunError(
            f"{folder}: {len(astray)} of its links lead nowhere, as {astray[0].relative_to(folder)} -> "
            f"{astray[0].readlink()}. A run needs the stages beside it, {folder.parent / 'stages'}: move "
            "them too, or `evid pack RUN` where they are. `evid resume` computes anew what is gone."
        )


def read_status(folder: Path) -> Mapping[str, Any]:
    """Return STATUS; where it says "running" and no process does, its state is "gone"."""
    status = read_object(folder / "STATUS")
    if status.get("state") != "running" or not status.get("stage") or is_locked(folder):
        return status
    reason = f"process {status.get('pid')} is gone without a word: it was killed, or a component ended it"
    log.warning("%s: %s", folder, reason)
    return {**status, "state": "gone", "message": reason}


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a file's whole lines; the run may still write it, and files of rollouts are too large to keep."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_BYTES), b""), start=1):
            if not line.endswith(b"\n") and len(line) < MOST_BYTES:
                return  # the run is writing this line right now
            if line.strip():
                yield read_line(path, number, line)


def read_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Return what a line of a file holds, counted from 1."""
    return _checked(path, f"{path}, line {number}", line, "Remove the line or resume the run.")


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds an object of JSON, empty where there is none yet."""
    return _checked(path, str(path), _content(path) or b"{}", "Run the stage again with `evid resume`.")


def read_tables(path: Path) -> dict[str, Any]:
    """Read a file of TOML, empty where there is none."""
    remedy = "It was written by the run; start a new one."
    try:
        result = tomllib.loads(_content(path).decode())
    except (ValueError, RecursionError) as cause:
        raise RunError(f"{path}: not TOML ({cause}). {remedy}") from cause
    _checked(path, str(path), json.dumps(result, default=str).encode(), remedy)
    return result


def _content(path: Path) -> bytes:
    """Return the bytes of a plain file, none where there is no such file."""
    return plain_file(path).read_bytes() if path.is_file() else b""


def _checked(path: Path, place: str, content: bytes, remedy: str) -> dict[str, Any]:
    """Return the object of JSON that a file or a line holds, once it is seen to be as evidcore writes it."""
    try:
        form = _FORMS.get(path.name) or _FORMS.get(path.parent.name) or _FORMS[""]
        form.model_validate_json(_SURROGATE.sub(rb"\1?", content))
        return dict(json.loads(content))
    except (ValueError, RecursionError) as cause:  # not UTF-8, too deep, too long a number, another type
        why, at = str(cause), ""
        if isinstance(cause, ValidationError):
            first = cause.errors(include_input=False, include_url=False)[0]
            why, at = first["msg"], "".join(f" {item}" for item in first["loc"])
        raise RunError(f"{place}:{at and f'{at}:'} {why}. {remedy}") from cause
