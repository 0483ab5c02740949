"""What someone asks of a run's model about one scan, and how it becomes a prompt of a task of the run."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from evidcore.api import Case, DataError, EncoderInput, EvalStage, Prompt, Question, VolumeRef
from evidcore.case import Intensity, Oblique
from evidcore.data import Volume, stem
from evidcore.data.reading import opened
from evidcore.errors import RunError, did_you_mean
from evidcore.recipe import Recipe
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.runs.assembly import Assembly
from evidcore.text.tags import LETTERS, STEM

_EXAMPLE = "--question 'Which finding is present?' --option 'lung nodule' --option emphysema"
# what readers tell someone with a data set to do, and what does the same here
_FLAGS = {
    "Set tilted = 'resample' on the data set": "Add --tilted resample",
    "Name one as key": "Name one with --series UID",
    "Correct the key": "Correct --series",
    "Leave the key out": "Leave --series out",
    "Set intensity = 'arbitrary' on the data set": "Use a run whose encoder has windows = []",
}


@contextlib.contextmanager
def naming_flags() -> Iterator[None]:
    """Let a refused scan name the flag of this command where the reader names the option of a data set."""
    try:
        yield
    except DataError as error:
        text = str(error)
        for option, flag in _FLAGS.items():
            text = text.replace(option, flag)
        raise DataError(text) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inquiry:
    """One scan and one question about it, as typed."""

    scan: str  # a file, or a folder with one DICOM series
    series: str | None = None  # SeriesInstanceUID, where the folder holds several
    tilted: Oblique = "refuse"
    task: str = ""  # of the recipe; empty: "choice" where there are options, else "report"
    question: str = ""
    options: tuple[str, ...] = ()
    unlike: bool = False  # answer also where the scan is far outside of what the model was trained on

    def reference(self, intensity: Intensity) -> VolumeRef:
        """Return the scan as `evidcore.data` reads it."""
        return VolumeRef(path=self.scan, intensity=intensity, key=self.series, tilted=self.tilted)

    def name(self) -> str:
        """Return the scan's file name without what says its format."""
        return stem(str(Path(self.scan).resolve())) or "scan"

    def task_name(self, recipe: Recipe) -> str:
        wanted = self.task or ("choice" if self.options else "report")
        if wanted in recipe.tasks:
            return wanted
        if not self.task and len(recipe.tasks) == 1:
            return next(iter(recipe.tasks))
        raise RunError(
            f"--task {wanted}: the recipe of this run names no task {wanted!r}."
            f"{did_you_mean(wanted, recipe.tasks)} Its tasks: {', '.join(recipe.tasks) or 'none'}. "
            "Name one of them with --task."
        )

    def questions(self, *, is_free: bool) -> tuple[Question, ...]:
        """Return the question with its options, none where none was put."""
        options = self.options
        if not options:
            if self.question and is_free:
                return (Question(id="asked", text=self.question, options=(), answer=0),)
            if self.question:
                raise RunError(
                    f"--question {self.question!r} has no options, and the model answers by naming one. "
                    f"Add --option at least twice, as in {_EXAMPLE}."
                )
            return ()
        if len(options) < 2 or len(options) > len(LETTERS):
            raise RunError(
                f"--option: a question has 2 to {len(LETTERS)} options, got {len(options)}: "
                f"{list(options)!r}. Write for instance {_EXAMPLE}."
            )
        wrong = [f"{option!r} is empty" for option in options if not option.strip()]
        wrong += [f"{option!r} stands there twice" for option in options if options.count(option) > 1]
        if wrong:
            raise RunError(f"--option: {wrong[0]}. Give each option once, with words.")
        # nobody knows the answer; the first option fills its place and is never read
        return (Question(id="asked", text=self.question or STEM, options=options, answer=0),)

    def prompt(self, assembly: Assembly, name: str, case: Case) -> Prompt:
        """Return the one prompt that a task makes of the self."""
        task = assembly.tasks[name]
        with blame(offer_of(task), f"asking about {self.scan}"):
            prompts = task.ask(case, assembly.view)
        if len(prompts) != 1:
            example = "--question 'the largest gland'" if task.takes_free_questions else _EXAMPLE
            many = f"asks {len(prompts)} questions about a scan, and one is put at a time"
            what = many if prompts else "asks nothing about a scan by itself"
            raise RunError(f"--task {name}: {offer_of(task)} {what}. Put the question: {example}.")
        if self.options and not prompts[0].reference.get("options"):
            raise RunError(
                f"--option: task {name!r} ({offer_of(task)}) takes no options, got {list(self.options)!r}. "
                "Leave them out, or name a task that takes them with --task."
            )
        return dataclasses.replace(prompts[0], task=name)


def most_new_tokens(recipe: Recipe, task: str) -> int:
    """Return how long an answer may be: as in the recipe's stages that ask this task, else in any."""
    stages = [stage for stage in recipe.stages if stage.workload().answers_tokens is not None]
    using = [stage for stage in stages if any(use.task == task for use in stage.data)]
    lengths = [stage.workload().answers_tokens or 0 for stage in using or stages]
    return max(lengths, default=EvalStage.max_new_tokens)


def check_volume(volume: Volume, ref: VolumeRef, spec: EncoderInput) -> None:
    """Refuse what was read but is not what the encoder was trained on."""
    depth, height, width = volume.shape_zyx
    if depth == 1 and spec.size_zyx[0] > 1 and not spec.any_depth:
        what = f"is a 2D image of {height} x {width} pixels; the model of this run reads volumes"
        raise DataError(f"{ref.path}: {what}. Give the whole series.")
    if not spec.windows:
        return
    stored, placement = opened(ref)
    # what lies outside a resampled volume was filled with air, whatever it is a scan of
    held = stored.values(ref.rescale) if placement.is_resampled else volume.array
    low, high = float(held.min()), float(held.max())
    if low >= 0:  # as MR, PET or CT without its rescale
        raise DataError(
            f"{ref.path}: the values run from {low:g} to {high:g}, so this is no CT in HU, where air is "
            "-1000 and fat -100; the model of this run reads HU. Give a CT with its rescale applied, or use "
            "a run whose encoder has windows = [] for MR and other intensities."
        )
