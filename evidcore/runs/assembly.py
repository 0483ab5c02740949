"""Everything that a recipe names, built once a run: components, cases and prompts as stages use them."""

import collections
import dataclasses
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from evidcore.cache import cache_folder
from evidcore.case import Case, Prompt, Split, VolumeRef
from evidcore.contracts import Corpus, Dataset, Language, Policy, Task, View
from evidcore.contracts.model import ForwardingPolicy
from evidcore.data import content_hash
from evidcore.data.content import excerpt
from evidcore.data.files import file_state
from evidcore.errors import ContractError, DataError, EmptySplitError, RunError, did_you_mean
from evidcore.prompts.rows import texts_of
from evidcore.recipe import DataUse, Recipe
from evidcore.registry import blame, factory, find
from evidcore.registry.factory import offer_of
from evidcore.registry.signature import component_class

log = logging.getLogger(__name__)

_Scan = tuple[DataUse, Case, VolumeRef]
_COUNTED_CASES = 500  # of a data entry, whose texts a vocabulary is counted in


class BoundPolicy(ForwardingPolicy):
    """A policy that the core gives components before there is one: `policy`, or `start_policy`."""

    def __init__(self) -> None:
        self._open: Callable[[], Policy] | None = None
        self._policy: Policy | None = None

    def bind(self, open_policy: Callable[[], Policy] | None) -> None:
        """Take what opens the policy of a stage; it is opened when it is first asked."""
        self._open, self._policy = open_policy, None

    def close(self) -> None:
        """Let go of the model; it is opened anew where it is asked again."""
        self._policy = None

    def forward(self, method: str, *columns: Sequence[Any], **settings: Any) -> Any:
        """Ask the model of the stage."""
        if self._open is None:
            raise RunError("`policy` was asked before a stage trains one. Ask it while rewards are computed.")
        if self._policy is None:
            self._policy = self._open()
        return getattr(self._policy, method)(*columns, **settings)


class Assembly:
    """A recipe's components, each built once, and its data.

    What the core gives, by name; a component's parameters left of `*` ask for it: `recipe_folder` and
    `cache_folder` to all, and `vocabulary`; `view` to tasks and tools; `policy` and `start_policy` to rewards
    and services; beside these what a stage or a component around it gives, as `tools` to a rollout or
    `labeler` to metrics.
    """

    def __init__(self, recipe: Recipe) -> None:
        """Build what needs no weights: services, data sets, view, tasks, the language model's component."""
        self.recipe = recipe
        self.policy, self.start_policy = BoundPolicy(), BoundPolicy()
        self._built: dict[tuple[str, str], Any] = {}
        self._cases: dict[tuple[str, Split], list[Case]] = {}
        self.services: dict[str, Any] = {}
        for name, table in recipe.services.items():
            bare = {key: value for key, value in table.items() if key != "kind"}
            self.services[name] = self.component(str(table["kind"]), bare, f"service.{name}")
        self.datasets: dict[str, Dataset] = {
            name: self.component("dataset", table, f"dataset.{name}")
            for name, table in recipe.datasets.items()
        }
        self.view: View = self.component("view", recipe.model.view, "model.view")
        self.tasks: dict[str, Task] = {
            name: self.component("task", table, f"task.{name}", view=self.view)
            for name, table in recipe.tasks.items()
        }
        self.language: Language = self.component("language", recipe.model.language, "model.language")

    def component(self, kind: str, table: Mapping[str, Any] | str, where: str, **given: Any) -> Any:
        """Return a service by its name, or the component of a table, built once for equal ones at a place."""
        if isinstance(table, str):
            return self.services[table]
        key = (where, json.dumps(table, sort_keys=True, default=str))
        if key not in self._built:
            known = {
                "recipe_folder": self.recipe.folder, "cache_folder": cache_folder(),
                "policy": self.policy, "start_policy": self.start_policy, "vocabulary": lambda: self.phrases,
            }  # fmt: skip
            view = {"view": self.view} if kind in ("tool", "task") and "view" not in given else {}
            self._built[key] = factory.build(
                kind, table, given={**known, **view, **given}, where=where, services=self.services
            )
        return self._built[key]

    def split(self, dataset: str, split: Split) -> list[Case]:
        """Return the cases of a split."""
        key = (dataset, split)
        if key not in self._cases:
            source = self.datasets[dataset]
            with blame(offer_of(source), f"listing the cases of {dataset}, {split}"):
                cases = list(source.cases(split))
            seen: set[str] = set()
            for case in cases:
                if case.id in seen:
                    raise ContractError(
                        f"{offer_of(source)}: case {case.id!r} comes twice in {dataset}, {split}."
                    )
                seen.add(case.id)
            self._cases[key] = cases
        if not self._cases[key]:
            raise EmptySplitError(
                f"dataset.{dataset}: the {split} split has no cases. Check the table's options and files."
            )
        return self._cases[key]

    def cases(self, use: DataUse) -> list[Case]:
        """Return the cases that a data entry asks for."""
        cases = self.split(use.dataset, use.split)
        if use.patient_fraction < 1:
            places = {case.id: _place(case.patient or case.id, self.recipe.seed) for case in cases}
            most = max(use.patient_fraction, min(places.values()))  # at least one patient
            cases = [case for case in cases if places[case.id] <= most]
        return cases[: use.limit] if use.limit else cases

    def asked(self, name: str, case: Case, *, seed: int = 0) -> list[Prompt]:
        """Return everything that a task asks about a case."""
        task = self.tasks[name]
        with blame(offer_of(task), f"asking about case {case.id!r}"):
            result = task.prompts(case, self.view, seed)
        return [dataclasses.replace(prompt, task=name) for prompt in result]

    def prompts(self, use: DataUse, *, seed: int = 0) -> list[Prompt]:
        """Return everything that a task asks about a data entry's cases; seed 0 is evaluation's."""
        result = [prompt for case in self.cases(use) for prompt in self.asked(use.task, case, seed=seed)]
        if not result:
            raise DataError(
                f"task {use.task!r} asks nothing about the {use.split} cases of {use.dataset!r}. "
                "It may need findings, questions or reports that this data set lacks."
            )
        return result

    @functools.cached_property
    def phrases(self) -> tuple[str, ...]:
        """Return the finding names of all data sets."""
        return tuple(dict.fromkeys(name for item in self.datasets.values() for name in item.findings))

    @functools.cached_property
    def vision(self) -> dict[str, Any] | None:
        """Return the vision configuration of a published language model; None where none is known here."""
        from evidcore.model.assemble import vision_of  # importing transformers takes 3 s

        if (vision := vision_of(self.language.vision())) is None:
            return None
        kind = component_class(find("encoder", str(self.recipe.model.encoder["use"])).load())
        published = kind.read_published(self.language)
        return {**vision, "published": dict(published)} if published else vision

    @property
    def corpus(self) -> Corpus:
        """Return what a counted vocabulary is counted in: prompts and answers of the training cases."""
        return Corpus(lambda: self._texts, self.phrases)

    def word_sources(self) -> tuple[DataUse, ...]:
        """Return what is asked about training cases, each once."""
        uses = [use for stage in self.recipe.stages for use in stage.data_uses()]
        return tuple(dict.fromkeys(use for use in uses if use.task and use.split == "train"))

    @functools.cached_property
    def _texts(self) -> list[str]:
        result = ["user\n", "assistant\n"]
        for use in self.word_sources():
            task = self.tasks[use.task]
            for case in self.cases(use)[:_COUNTED_CASES]:
                result.append(str(case.notes.get("impression", "")))
                for prompt in task.prompts(case, self.view, 1):
                    result += texts_of(prompt, task)
        return result


def check_splits(assembly: Assembly, leaving_out: Collection[str] = ()) -> None:
    """Refuse data in which a patient or scan is in two splits that the recipe uses, of any of its sets."""
    stages = assembly.recipe.stages
    read = {(use.dataset, use.split) for stage in stages for use in stage.data_uses()}
    read |= {(use.dataset, "validation") for stage in stages if stage.traits.validates for use in stage.data}
    where: dict[tuple[str, str], tuple[str, Split, str]] = {}
    ids: dict[str, set[str]] = {name: set() for name in assembly.datasets}
    scans: list[_Scan] = []
    for dataset, split in sorted(pair for pair in read if pair[0] not in leaving_out):
        use = DataUse(dataset=dataset, split=split)
        for case in assembly.split(dataset, split):
            ids[dataset].add(case.id)
            scans += [(use, case, ref) for ref in case.volumes if os.path.exists(ref.path)]
            patient = case.patient or case.id
            key = ("" if case.patient else dataset, patient)  # names of patients hold over data sets
            other, other_split, case_id = where.setdefault(key, (dataset, split, case.id))
            if other_split != split:
                of = "" if other == dataset else f" of dataset.{other}"
                raise DataError(
                    f"dataset.{dataset}: patient {patient!r} is in {other_split}{of} (case {case_id!r}) and "
                    f"in {split} (case {case.id!r}). Move or drop one: a patient may be in one split only, "
                    "over all data sets. If these are two patients, name them apart."
                )
    if len(ids.keys() - {*leaving_out}) > 1 or any(case.patient is None for _, case, _ in scans):
        _compare_scans(scans)
    for name, source in assembly.datasets.items():
        unmet = [item for item, is_met in source.excluded.items() if not is_met]
        if unmet and name not in leaving_out:
            text = f"dataset.{name}.exclude: {len(unmet)} of {len(source.excluded)} ids are of no case that "
            text += f"is read, such as {unmet[0]!r}.{did_you_mean(unmet[0], ids[name])}"
            if len(unmet) == len(source.excluded):
                raise DataError(f"{text} Correct them.")
            log.warning("%s", text)


def _compare_scans(scans: list[_Scan]) -> None:
    """Refuse a scan in two splits of two data sets; warn of one within a set, as published ones hold some.

    Each fact takes longer to find out than the one before, and is asked of what agrees so far.
    """
    groups = [scans]
    for fact in (lambda path: str([size for *_, size in file_state(path) or ()]), excerpt, content_hash):
        alike: dict[Any, list[_Scan]] = collections.defaultdict(list)
        for number, group in enumerate(groups):
            for scan in group:
                alike[number, scan[-1].key, fact(scan[-1].path)].append(scan)
        groups = [group for group in alike.values() if len({use.split for use, *_ in group}) > 1]
    if not groups:
        return
    group = max(groups, key=lambda group: len({use.dataset for use, *_ in group}))
    before, first, volume = group[0]
    other, case, copy = next(scan for scan in group if scan[0].split != before.split)
    text = (
        f"dataset.{other.dataset}: case {case.id!r} in {other.split} is the same scan as case {first.id!r} "
        f"of dataset.{before.dataset} in {before.split}: {copy.path} and {volume.path} hold the same. "
        f"Drop one, as by exclude = [{case.id!r}] on dataset.{other.dataset}, or put both into one split."
    )
    if len({use.dataset for use, *_ in group}) > 1:
        raise DataError(text)
    log.warning("%s There are %d such scans; `evid data check` names them.", text, len(groups))


def _place(patient: str, seed: int) -> float:
    """Return a patient's place in 0..1, the same in every process."""
    digest = hashlib.blake2b(f"{seed}/{patient}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
