"""A run as a program of its own that says of each stage which files of the project took part in it.

A file took part where one of its functions ran while the stage did, or where the stage imported it.
"""

import functools
import json
import sys
import threading
from pathlib import Path

import torch

from evidcore.recipe import load
from evidcore.runs.begin import run, start

torch.set_num_threads(1)
PROJECT = "evidcore"


def files():
    """Return the project's modules that are loaded, by name."""
    return {
        name: module.__file__
        for name, module in sys.modules.copy().items()
        if name.partition(".")[0].startswith(PROJECT) and getattr(module, "__file__", None)
    }


def traced(function, found):
    @functools.wraps(function)
    def run_traced(stage, context):
        before, codes = set(files()), set()

        def note(frame, event, _):
            codes.add(frame.f_code)

        threading.setprofile(note)
        sys.setprofile(note)
        try:
            return function(stage, context)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            ran = {code.co_filename for code in codes}
            found[context.where] = sorted(
                name for name, file in files().items() if name not in before or file in ran
            )

    return run_traced


def main(recipe: str, said: str) -> None:
    result: dict[str, list[str]] = {}
    loaded = load(Path(recipe))
    for kind in {type(stage) for stage in loaded.stages}:
        kind.run = traced(kind.run, result)
    run(start(loaded, Path("runs")))
    Path(said).write_text(json.dumps(result), encoding="utf-8")


main(*sys.argv[1:])
