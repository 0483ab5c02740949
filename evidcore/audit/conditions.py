"""Conditions of the evidence ladder: the same questions over no, changed, other and altered volumes."""

import dataclasses
import itertools
import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from annotated_types import Ge

from evidcore.case import Change, Crop, Prompt, VolumeRef
from evidcore.contracts import Condition, Dataset
from evidcore.errors import DataError
from evidcore.evaluate.reference_lines import cluster_of

MOST = 300  # questions that a showing of other volumes than one's own is tried on; each may need a volume
Alter = Callable[[Prompt], Prompt | None]


class Blank(Condition):
    """Show air on the grid of each volume: what header and text alone are worth."""

    says = "blank volumes"
    role = "blind"

    def show(self, prompts: Sequence[Prompt], *, seed: int, dataset: Dataset | None) -> list[Prompt | None]:
        return [prompt.with_blank_volumes() for prompt in prompts]


class Scrambled(Condition):
    """Show the volume's own voxels in another order: what header and intensities alone are worth."""

    says = "own voxels in another order"
    role = "blind"

    def show(self, prompts: Sequence[Prompt], *, seed: int, dataset: Dataset | None) -> list[Prompt | None]:
        return [_changed(prompt, "scrambled") for prompt in prompts]


class Perturbed(Condition):
    """Move the volume by one voxel and add faint noise: what was seen stays, what was remembered may not.

    Where the reference names masks, the answer is a place, and would have to move too: there is noise alone.
    """

    says = "own volumes with noise, moved by a voxel if no place is asked"
    role = "kept"

    def show(self, prompts: Sequence[Prompt], *, seed: int, dataset: Dataset | None) -> list[Prompt | None]:
        return [
            _changed(prompt, "noisy" if prompt.reference.get("masks") else "perturbed") for prompt in prompts
        ]


class OtherPatient(Condition):
    """Show another patient's volumes: nobody keeps their own.

    Patients stand in a circle, in an order drawn from the seed, and each gets the next one's volumes, so
    every volume is shown about as often as before. Where the next patient shows another number of volumes,
    the one after is taken; where a volume has other many slices, as many are taken evenly. The difference
    says how far a wrong scan misleads; a policy that loses by it may still gain nothing by looking.

    Args:
        repeats: how often volumes are exchanged, each time otherwise; more make the interval narrower.
    """

    says = "another patient's volumes"
    role = "other"

    def __init__(self, *, repeats: Annotated[int, Ge(1)] = 1) -> None:
        self.repeats = repeats  # one: this difference is no proof of sight

    def show(self, prompts: Sequence[Prompt], *, seed: int, dataset: Dataset | None) -> list[Prompt | None]:
        """Return every question over another patient's volumes."""
        scans: dict[str, dict[tuple[Crop, ...], None]] = {}  # each once, in order
        for prompt in prompts:
            scans.setdefault(cluster_of(prompt), {})[prompt.crops()] = None
        circle = sorted(scans)
        random.Random(f"exchange/{seed}").shuffle(circle)
        places = {patient: number for number, patient in enumerate(circle)}
        result: list[Prompt | None] = []
        for prompt, own in zip(prompts, map(cluster_of, prompts), strict=True):
            count, place = len(_by_volume(prompt.crops())), places[own]
            others = (scans[patient] for patient in (*circle[place + 1 :], *circle[:place]))
            alike = ([crops for crops in donor if len(_by_volume(crops)) == count] for donor in others)
            if not (fitting := next(filter(None, alike), None)):
                raise DataError(
                    f"prompt {prompt.id!r} of {own!r} shows {count} volumes and no other of the "
                    f"{len(circle)} patients does. Audit with at least two patients, seen in the same view."
                )
            result.append(_showing(prompt, fitting[list(scans[own]).index(prompt.crops()) % len(fitting)]))
        return result


class Altering(Condition):
    """A condition that shows some questions, each altered by itself."""

    def __init__(self, *, max_questions: Annotated[int, Ge(1)] = MOST) -> None:
        """Keep the bound.

        Args:
            max_questions: questions shown so, drawn by the seed; each may need a volume of its own.
        """
        self.max_questions = max_questions

    @abstractmethod
    def altering(self, prompts: Sequence[Prompt], seed: int, dataset: Dataset | None) -> Alter:
        """Return what alters a question, None where it cannot be."""

    def show(self, prompts: Sequence[Prompt], *, seed: int, dataset: Dataset | None) -> list[Prompt | None]:
        """Return the questions that can be altered, in an order drawn from the seed as many as may be."""
        alter, left = self.altering(prompts, seed, dataset), self.max_questions
        result: list[Prompt | None] = [None] * len(prompts)
        for index in random.Random(f"altered/{seed}").sample(range(len(prompts)), len(prompts)):
            if left > 0 and (edited := alter(prompts[index])) is not None:
                result[index], left = edited, left - 1
        return result


class Matched(Altering):
    """Show another patient who lacks what is asked about, and is otherwise as like as can be.

    Of the patients without the asked finding the one whose other findings differ least is taken. It stands in
    for a twin where the data have none: scanner and anatomy differ too.
    """

    says = "like patients without what is asked"
    role = "removed"

    def altering(self, prompts: Sequence[Prompt], seed: int, dataset: Dataset | None) -> Alter:
        """Return what shows a question whose right answer is a finding of the case over a matched patient."""
        return _over_donors(prompts, "absent", seed)


class SameAnswer(Altering):
    """Show another patient with the asked finding and none of the other options: the answer must stay."""

    says = "other patients with the same answer"
    role = "kept"

    def altering(self, prompts: Sequence[Prompt], seed: int, dataset: Dataset | None) -> Alter:
        """Return what shows a question whose right answer is a finding of the case over one with the same."""
        alter = _over_donors(prompts, "present", seed)
        return lambda prompt: None if prompt.reference.get("finding") is None else alter(prompt)


class Twin(Altering):
    """Show the same patient without the asked finding, where the data set can (`Dataset.without`)."""

    says = "the same patients without what is asked"
    role = "removed"

    def altering(self, prompts: Sequence[Prompt], seed: int, dataset: Dataset | None) -> Alter:
        """Return what shows a question whose right answer is a finding of the case over its twin."""
        return lambda prompt: _without(prompt, _asked(prompt), dataset)


class Sham(Altering):
    """Show the same patient without a finding that is not asked about: the answer must stay."""

    says = "the same patients without something else"
    role = "kept"

    def altering(self, prompts: Sequence[Prompt], seed: int, dataset: Dataset | None) -> Alter:
        """Return what shows a question about a case with another finding over the case without it."""

        def alter(prompt: Prompt) -> Prompt | None:
            if prompt.reference.get("finding") is None:  # every finding is asked about: nothing is left
                return None
            named = {_asked(prompt), *_others(prompt)}
            free = [finding for finding in prompt.case.present() if finding not in named]
            other = random.Random(f"sham/{seed}/{prompt.id}").choice(free) if free else None
            return _without(prompt, other, dataset)

        return alter


def _changed(prompt: Prompt, change: Change) -> Prompt:
    return prompt.showing([dataclasses.replace(crop, change=change) for crop in prompt.crops()])


def _asked(prompt: Prompt) -> str | None:
    """Return the finding that the right answer stands for, if the case has it.

    Of a question about all findings of a case, which its reference names as `present`, one is drawn.
    """
    if present := prompt.reference.get("present"):
        return str(random.Random(f"asked/{prompt.id}").choice(sorted(present)))
    finding = prompt.reference.get("finding")
    return str(finding) if finding is not None and prompt.case.state_of(str(finding)) == "present" else None


def _others(prompt: Prompt) -> list[str]:
    return [
        str(item) for item in prompt.reference.get("options") or () if item != prompt.reference.get("finding")
    ]


def _without(prompt: Prompt, finding: str | None, dataset: Dataset | None) -> Prompt | None:
    volumes = None if finding is None or dataset is None else dataset.without(prompt.case, finding)
    if volumes is None:
        return None
    mapping: Mapping[VolumeRef, VolumeRef] = dict(zip(prompt.case.volumes, volumes, strict=True))
    return prompt.showing([dataclasses.replace(crop, volume=mapping[crop.volume]) for crop in prompt.crops()])


def _by_volume(crops: Sequence[Crop]) -> list[list[Crop]]:
    """Return crops in runs of one volume: its slices."""
    return [list(run) for _, run in itertools.groupby(crops, lambda crop: crop.volume)]


def _showing(prompt: Prompt, crops: Sequence[Crop]) -> Prompt:
    """Return a prompt over another patient's volumes, of each as many slices as of its own, taken evenly."""
    pairs = zip(_by_volume(prompt.crops()), _by_volume(crops), strict=True)
    taken = (
        run[(2 * turn + 1) * len(run) // (2 * len(own))] for own, run in pairs for turn in range(len(own))
    )
    return prompt.showing(list(taken))


def _over_donors(prompts: Sequence[Prompt], state: str, seed: int) -> Alter:
    """Return what shows a question over the most alike patient whose asked finding is so, ties drawn.

    Where it is present, no other option may be true of the patient.
    """
    order = list({prompt.case.id: prompt for prompt in prompts}.values())
    random.Random(f"donors/{seed}").shuffle(order)
    volumes = {entry.case.id: len(_by_volume(entry.crops())) for entry in order}
    states = {entry.case.id: {item.name: item.state for item in entry.case.findings} for entry in order}

    def alter(prompt: Prompt) -> Prompt | None:
        finding, others = _asked(prompt), _others(prompt) if state == "present" else []
        cluster, mine, count = cluster_of(prompt), states[prompt.case.id].items(), volumes[prompt.case.id]
        fitting = [
            donor
            for donor in (order if finding is not None else ())
            if donor.case.state_of(str(finding)) == state
            and all(donor.case.state_of(other) == "absent" for other in others)
            and cluster_of(donor) != cluster
            and volumes[donor.case.id] == count
        ]
        apart = [len(mine - states[donor.case.id].items()) for donor in fitting]  # findings that differ
        return _showing(prompt, fitting[apart.index(min(apart))].crops()) if fitting else None

    return alter
