"""Which sentences of a written report affirm which findings, and the slice that is cited for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evidcore_plugin_hub.worker import Broken, Raised

from evidcore.errors import RunError
from evidcore.text.tags import inside
from evidcore_plugin_view.asking import Asking
from evidcore_plugin_view.public_lines import MOST_CHARACTERS

Sentences = list[dict[str, Any]]  # start and end, in characters, and the findings that are present


def cited_sentences(
    line: Mapping[str, Any], read: Callable[[str, Sequence[str]], Sentences]
) -> dict[str, Any]:
    """Return the sentences that affirm a finding, and each finding with its slice.

    A finding has the slice that is cited for it, else the one that is cited for the whole report, else None.
    Only what is shown is read: of a text that is cut, its beginning.

    Args:
        line: an answer, or a rollout with the findings of its group under `present` and `absent`.
        read: gives the sentences of a text that affirm one of some findings.
    """
    evidence = line.get("evidence") or line
    slices = {str(name): z for name, z in (evidence.get("slices") or {}).items() if isinstance(z, int)}
    whole = slices.pop("", evidence.get("slice"))
    lists = ("affirmed", "present", "absent")
    names = list(dict.fromkeys([*slices, *(str(name) for key in lists for name in line.get(key) or ())]))
    text = str(line.get("text", ""))[:MOST_CHARACTERS]
    report = inside(text, "report")
    start = 0 if report is None else text.index(report, text.index("<report>") + len("<report>"))
    sentences = read(text if report is None else report, names) if names else []
    told = [*slices, *(line.get("affirmed") or ()), *(name for one in sentences for name in one["findings"])]
    return {
        "sentences": [{**one, "start": one["start"] + start, "end": one["end"] + start} for one in sentences],
        "slices": {name: slices.get(name, whole) for name in dict.fromkeys(map(str, told))},
    }


class SentenceReader:
    """Reads texts with the labeler `negation-rules`, in a process that starts with the first of them."""

    def __init__(self) -> None:
        self._ask = Asking()

    def __call__(self, text: str, names: Sequence[str]) -> Sentences:
        """Return the sentences of a text that affirm one of some findings.

        Raises:
            RunError: if the process ended.
        """
        try:
            found: Sentences = self._ask("affirming", text, list(names))
        except (Broken, Raised) as cause:
            says = "The sentences could not be read: their process ended. Choose the question again."
            raise RunError(says) from cause
        return found

    def close(self) -> None:
        """End the process."""
        self._ask.close()
