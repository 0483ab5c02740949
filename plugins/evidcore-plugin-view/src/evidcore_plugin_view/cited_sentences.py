"""Which sentences of a written report affirm which findings, and the slice that is cited for each.

A process of its own reads the sentences: labelers need torch, a viewer does not. `python -m
evidcore_plugin_view.cited_sentences` reads requests from its input and answers each with one line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evidcore.errors import RunError
from evidcore.text.tags import inside
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
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def __call__(self, text: str, names: Sequence[str]) -> Sentences:
        """Return the sentences of a text that affirm one of some findings.

        Raises:
            RunError: if the process ended.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    text=True, encoding="utf-8", start_new_session=True,
                )  # fmt: skip
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps([text, list(names)]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise RunError("The sentences could not be read: their process ended. Choose the question again.")
        found: Sentences = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None


def affirming(text: str, names: Sequence[str]) -> Sentences:
    """Return the sentences of a text in which a finding is present, with all such findings."""
    from evidcore.registry.factory import build
    from evidcore.text.sentences import sentences

    settings = {"use": "negation-rules", "findings": list(names)}
    labeler = build("labeler", settings, given={}, where="evid view")
    present = [one for one in labeler(text) if one.state == "present" and one.span is not None]
    found = []
    for stretch in sentences(text):
        told = [one.name for one in present if stretch.start <= one.span.start < stretch.end]
        if told:
            found.append({"start": stretch.start, "end": stretch.end, "findings": list(dict.fromkeys(told))})
    return found


def main() -> None:
    """Answer requests until the input ends: a text and the findings to look for."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a package prints is no answer
    for request in sys.stdin:
        print(json.dumps(affirming(*json.loads(request))), file=answers, flush=True)


if __name__ == "__main__":
    main()
