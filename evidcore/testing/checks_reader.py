"""The check of readers."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from evidcore.case import Crop
from evidcore.contracts import Reader
from evidcore.testing.clauses import raises_nothing, require


def check_reader(reader: Reader, crops: Sequence[Crop], question: str, folder: Path) -> None:
    """Assert the contract of a reader.

    The clauses:

    - it declares whether it is deterministic;
    - an answer is a text that is not empty, or None;
    - a deterministic reader answers twice the same, and the same where nothing lies beside the volume:
      it has pixels to go by, no report.

    Args:
        reader: the component under test.
        crops: what it is shown.
        question: what it is asked.
        folder: an empty one; the volumes are copied there under other names.
    """
    declared = getattr(reader, "deterministic", None)
    found = f"got {declared!r}"
    require(isinstance(declared, bool), reader, "it declares whether it is deterministic", found)
    answer = reader(crops, question)
    sound = answer is None or (isinstance(answer, str) and bool(answer.strip()))
    require(sound, reader, "an answer is a text that is not empty, or None", f"got {answer!r}")
    if not declared:
        return
    again = reader(crops, question)
    told = f"{answer!r}, then {again!r}"
    require(answer == again, reader, "a deterministic reader answers twice the same", told)
    moved = []
    for number, crop in enumerate(crops):
        source = Path(crop.volume.path)
        target = folder / str(number) / f"volume{''.join(source.suffixes)}"
        target.parent.mkdir(parents=True)
        shutil.copyfile(source, target)
        ref = dataclasses.replace(crop.volume, path=str(target))
        moved.append(Crop(volume=ref, box_zyx=crop.box_zyx, blank=crop.blank))
    clause = "it goes by pixels, not by what lies beside them"
    with raises_nothing(reader, clause, "a volume that lies alone"):
        alone = reader(moved, question)
    require(alone == answer, reader, clause, f"{answer!r} became {alone!r} where the volume lies alone")
