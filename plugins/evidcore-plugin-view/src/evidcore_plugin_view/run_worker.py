"""What a process of its own does for the viewer: looks cases up, reads sentences, follows boxes.

Boxes are followed through volumes as the run itself did.

- The boxes of an answer are followed by the evaluation of its stage (`Evaluation.follow`), with the options
  and services of the recipe. An audit that was asked for after the run measures as its last evaluation.
- The boxes of a rollout are followed by the segmenter that the stage's rewards name, and where they name none
  by the last evaluation of the task.
"""

import contextlib
import dataclasses
import functools
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore_plugin_pages.cases import look_up
from evidcore_plugin_pages.record import read_head
from evidcore_plugin_reports.sentences import sentences

from evidcore.api import Crop, EvalStage, Evaluation, Prompt, Segmenter, Stage, VolumeRef
from evidcore.case import Evidence
from evidcore.compute.processes import pin_threads
from evidcore.contracts import BoxPrompt
from evidcore.data import Mask, read_geometry
from evidcore.errors import ContractError, EvidError, RunError
from evidcore.recipe import Recipe, load
from evidcore.registry import blame, factory
from evidcore.registry.factory import build, offer_of, options
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.execute import last_asking, outputs_of
from evidcore.runs.folder import RunFolder
from evidcore_plugin_view.background import CaseEntry, FollowedMask, FollowRequest


class RunWorker:
    """What the viewer asks a process of its own; it has one for cases, one for sentences, one for boxes."""

    def __init__(self, ask: object) -> None:
        """Begin with nothing read."""
        self._head = functools.cache(read_head)
        self._follower = functools.cache(BoxFollower)

    def cases(
        self, folder: Path, lines: Sequence[Mapping[str, Any]], show_reports: bool
    ) -> tuple[dict[str, CaseEntry], list[str]]:
        """Return the cases of one task's lines by id, and what is wrong."""
        known, faults = look_up(self._head(folder), lines)
        cases = {}
        for name, entry in known.items():
            case, report = entry.case, entry.case.report
            may_show = entry.phantom or show_reports
            cases[name] = CaseEntry(
                phantom=entry.phantom,
                paths=tuple(ref.path for ref in case.volumes),
                masks=dict(case.masks),
                present=case.present(),
                report=dataclasses.asdict(report) if report is not None and may_show else None,
                report_withheld=report is not None and not may_show,
            )
        return cases, faults

    def affirming(self, text: str, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the sentences of a text in which a finding is present, with all such findings."""
        settings = {"use": "negation-rules", "findings": names}
        labeler = build("labeler", settings, given={}, where="evid view")
        present = [item for item in labeler(text) if item.state == "present" and item.span is not None]
        affirming = []
        for stretch in sentences(text):
            affirmed = [item.name for item in present if stretch.start <= item.span.start < stretch.end]
            if affirmed:
                findings = list(dict.fromkeys(affirmed))
                affirming.append({"start": stretch.start, "end": stretch.end, "findings": findings})
        return affirming

    def follow(self, folder: Path, wanted: FollowRequest) -> FollowedMask:
        """Follow boxes; a component that fails stops no later one."""
        try:
            return self._follower(folder)(wanted)
        except Exception as cause:
            if isinstance(cause, ContractError) or not isinstance(cause, EvidError):
                traceback.print_exc()
            fault = str(cause) if isinstance(cause, EvidError) else f"{type(cause).__name__}: {cause}"
            if isinstance(cause, ContractError) and cause.__cause__ is not None:
                fault = f"{cause.safe}: {cause.__cause__}"  # its traceback stands in the terminal
            return FollowedMask(fault=fault)


class BoxFollower:
    """Follows boxes with the segmenters of one run, each built once."""

    def __init__(self, folder: Path) -> None:
        """Take the folder of the run."""
        self._folder = folder
        self._assemblies: dict[tuple[int, ...], Assembly] = {}

    def __call__(self, wanted: FollowRequest) -> FollowedMask:
        """Return the mask of some boxes.

        Raises:
            EvidError: if the recipe cannot be built here, the question is not asked by it, or nothing follows
                its boxes, or a segmenter fails or refuses them; names what.
        """
        volume = Crop.parse_uri(wanted.image).volume
        evidence = Evidence(slice=wanted.slice, boxes=wanted.boxes)
        result = self._as_rewarded(wanted, evidence, volume) if wanted.kind == "rollouts" else None
        result = result or self._as_measured(wanted, evidence, volume)
        if result is None:
            raise RunError(f"{wanted.stage}: no segmenter of the recipe follows boxes of {wanted.task!r}.")
        mask, component, whom = result
        shape = read_geometry(volume).shape_zyx
        if mask.shape != shape or mask.dtype != bool:
            gave = f"gave a mask of {mask.dtype} {mask.shape} for a volume of {shape} (z, y, x)"
            raise ContractError(f"{offer_of(component)}: {gave}.")
        return FollowedMask.of(mask, f"{offer_of(component)}, {whom}")

    @functools.cached_property
    def _recipe(self) -> Recipe:
        recipe = load(self._folder / "resolved.toml")
        pin_threads(recipe.threads)
        return recipe

    def _place(self, wanted: FollowRequest) -> int:
        """Return the place of a stage in the recipe; of one that was run later, the end."""
        names = self._recipe.stage_names
        return names.index(wanted.stage) if wanted.stage in names else len(names)

    def _assembly(self, place: int) -> Assembly:
        """Return the recipe's components, services with the weights that stages before a place gave them."""
        stages = {
            index: stage
            for index, stage in enumerate(self._recipe.stages[:place])
            if (stage.output or "").startswith("service.")
        }
        key = tuple(stages)
        if key not in self._assemblies:
            assembly = Assembly(self._recipe)
            outputs_of(RunFolder(self._folder), self._recipe, stages).load_services(assembly)
            self._assemblies[key] = assembly
        return self._assemblies[key]

    def _as_rewarded(
        self, wanted: FollowRequest, evidence: Evidence, volume: VolumeRef
    ) -> tuple[Mask, object, str] | None:
        """Return what the rewards' segmenter makes of a rollout's boxes; None where they name none."""
        place = self._place(wanted)
        assembly = self._assembly(place)
        tables: list[Mapping[str, Any]] = []
        for stage in self._recipe.stages[place : place + 1]:
            for kind, named in stage.components(self._recipe):
                if kind == "reward":
                    tables += [named] if isinstance(named, Mapping) else named
        for table in tables:
            for option in options(factory.named_offer("reward", table).load(), "reward").values():
                value = table.get(option.name, option.default)
                if option.kind == "segmenter" and isinstance(value, str | Mapping):
                    where = f"{wanted.stage}.{option.name}"
                    segmenter: Segmenter = assembly.component("segmenter", value, where)
                    prompts = [BoxPrompt(box=box) for box in dict.fromkeys(evidence.boxes)]
                    with _refusal(), blame(offer_of(segmenter), f"following boxes through {volume.path}"):
                        mask = segmenter.session(volume).mask(prompts)
                    whom = f"which reward {table['use']!r} of {wanted.stage} asks; it may judge fewer slices"
                    return mask, segmenter, whom
        return None

    def _as_measured(
        self, wanted: FollowRequest, evidence: Evidence, volume: VolumeRef
    ) -> tuple[Mask, object, str] | None:
        """Return what an evaluation makes of the boxes; None where none measures the task or follows them."""
        place, stages = self._place(wanted), self._recipe.stages
        asking = stages[place] if place < len(stages) else last_asking(tuple(self._recipe.line.values()))
        for at, stage in reversed(list(enumerate(stages))):
            use = next((use for use in stage.data_uses() if use.task == wanted.task), None)
            if use is None or not isinstance(stage, EvalStage):
                continue
            if wanted.kind == "rollouts" or stage is asking:
                assembly, name = self._assembly(at), self._recipe.stage_name(at)
                evaluation: Evaluation[Any] = stage.evaluation(use, Context(assembly, name))
                prompt = _prompt(assembly, asking or stage, wanted)
                with _refusal():
                    followed = evaluation.follow(prompt, evidence, volume)
                return None if followed is None else (*followed, f"as {name} measures answers")
        return None


def _prompt(assembly: Assembly, stage: Stage, wanted: FollowRequest) -> Prompt:
    """Return a question of a stage."""
    for use in stage.data_uses():
        cases = assembly.split(use.dataset, use.split) if use.task == wanted.task else []
        for case in cases:
            asked = assembly.asked(wanted.task, case) if case.id == wanted.case else []
            for prompt in asked:
                if prompt.id == wanted.prompt:
                    return prompt
    raise RunError(
        f"{wanted.stage}: task {wanted.task!r} asks no {wanted.prompt!r} of case {wanted.case!r} any more, "
        "so its boxes are not followed. Was the data set changed?"
    )


@contextlib.contextmanager
def _refusal() -> Iterator[None]:
    """Tell a ValueError of a segmenter, by which it refuses boxes, from failures."""
    try:
        yield
    except ContractError as cause:
        if isinstance(cause.__cause__, ValueError):
            raise RunError(f"The segmenter refused the boxes: {cause.__cause__}") from cause
        raise
