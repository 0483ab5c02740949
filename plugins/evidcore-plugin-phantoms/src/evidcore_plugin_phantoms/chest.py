"""Data set `phantom-chest`: generated chest CTs with the 18 findings of CT-RATE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from evidcore.case import Case, MaskRef, Question, Split
from evidcore.text.findings import CT_RATE_FINDINGS
from evidcore_plugin_phantoms.cues import PATIENT_TYPE, check
from evidcore_plugin_phantoms.dataset import Phantoms
from evidcore_plugin_phantoms.questions import Item, balanced_items
from evidcore_plugin_phantoms.render import Population
from evidcore_plugin_phantoms.wording import question


class PhantomChest(Phantoms[Population]):
    """Chest phantoms whose signs, words and priors are known and adjustable.

    Volumes are 32 x 64 x 64 voxels of 10 x 5.5 x 5.5 mm in HU. Every finding that a case is labelled with can
    be seen: a sign that others hide is not labelled. The patients of the splits are drawn from separate
    random streams, so they are disjoint.
    """

    findings = CT_RATE_FINDINGS
    folder_name = "phantom-chest"

    def __init__(
        self,
        cache_folder: Path,
        *,
        train_cases: Annotated[int, Ge(0)] = 3000,
        validation_cases: Annotated[int, Ge(0)] = 300,
        test_cases: Annotated[int, Ge(0)] = 600,
        seed: Annotated[int, Ge(0)] = 17,
        prior_strength: Annotated[float, Ge(0), Le(1)] = 0.0,
        subtlety: Annotated[float, Gt(0), Le(20)] = 1.0,
        prevalence: Annotated[float, Gt(0), Le(0.8)] = 0.2,
        questions_per_finding: Annotated[int, Ge(0)] = 72,
        names_absent: bool = True,
        cue_of: str = PATIENT_TYPE,
        header_cue: Annotated[float, Ge(0), Le(1)] = 0.0,
        device_cue: Annotated[float, Ge(0), Le(1)] = 0.0,
        table_cue: Annotated[float, Ge(0), Le(1)] = 0.0,
        company: Annotated[float, Ge(0), Le(1)] = 0.0,
    ) -> None:
        """Describe the set; nothing is drawn before cases are asked for.

        Args:
            cache_folder: where volumes are kept, in a folder named by the hash of all options.
            train_cases: patients to learn from.
            validation_cases: patients to choose by.
            test_cases: patients to measure on.
            seed: every seed is another population.
            prior_strength: how well text alone predicts the findings. At 0 they are independent of each other
                and of every text. Above 0 each patient has an indication ("smoker"), which stands in the
                questions and in the case's notes; at 1 a finding is five times as likely, at most 90 %, under
                its own indication, which makes it up to 15 times as likely there as elsewhere.
            subtlety: multiplies the noise (12 to 22 HU); the contrast-to-noise ratio of every sign falls.
            prevalence: probability of each finding.
            questions_per_finding: size of the test split's balanced question set, in questions per finding;
                the other splits have as many per case. Each finding is right as often as any other, under
                each letter as often, and a distractor three times as often as it is right.
            names_absent: reports have a sentence for each absent finding, as structured ones do. Without,
                they praise what is healthy in general terms, and what they say of the findings stands in
                their last sentences alone.
            cue_of: what hidden cues follow: the name of a finding; left out, the type of patient.
                No text tells of a cue.
            header_cue: how likely the distance of slices that the header states follows it, from 8 to 12 mm;
                else it is any of the same values. At 0 it is 10 mm. The voxels stay.
            device_cue: how likely the noise follows it, from 12 to 22 HU at a subtlety of 1. At 0 the noise
                is anything between.
            table_cue: how likely the height of the table follows it, over 11 mm. At 0 no table is drawn.
            company: how strongly findings of a patient's type come together, as with `prior_strength`, and no
                text tells the type.
        """
        check(self.folder_name, CT_RATE_FINDINGS, cue_of, company, prior_strength)
        population = Population(
            seed=seed, prior_strength=prior_strength, subtlety=subtlety, prevalence=prevalence,
            names_absent=names_absent, cue_of=cue_of, header_cue=header_cue, device_cue=device_cue,
            table_cue=table_cue, company=company,
        )  # fmt: skip
        counts = {"train": train_cases, "validation": validation_cases, "test": test_cases}
        super().__init__(cache_folder, population, counts)
        self._questions_per_finding = questions_per_finding

    def _asked(self) -> Mapping[str, Any]:
        return {"questions": self._questions_per_finding}

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of a split; draws them first if they are not in the cache."""
        if not self._counts[split]:
            return
        folder, known = self._drawn(split)
        asked = self._questions(split, known)
        for number, facts in enumerate(known):
            yield self._case(folder, split, number, facts, asked.get(number, ()))

    def _questions(self, split: str, known: list[dict[str, Any]]) -> dict[int, tuple[Question, ...]]:
        test_cases = self._counts["test"] or len(known)
        per_finding = round(self._questions_per_finding * len(known) / test_cases)
        rng = self._population.balancing(split)
        present = [[item["name"] for item in facts["findings"] if item["present"]] for facts in known]
        found: dict[int, tuple[Question, ...]] = {}
        for item in balanced_items(present, CT_RATE_FINDINGS, per_finding, rng):
            before = found.get(item.case, ())
            indication = known[item.case]["indication"] if self._population.prior_strength > 0 else None
            text = question(rng, indication)
            found[item.case] = (*before, _question(item, split, len(before), text))
        return found

    def _case(
        self, folder: Path, split: str, number: int, facts: Mapping[str, Any], asked: tuple[Question, ...]
    ) -> Case:
        common = self._common(folder, split, number, facts)
        present = [item.name for item in common["findings"] if item.state == "present"]
        path = str(folder / f"{number:05d}.npz")
        return Case(**common, masks={name: MaskRef(path=path, key=name) for name in present}, questions=asked)


def _question(item: Item, split: str, place: int, text: str) -> Question:
    return Question(
        id=f"{split}-{item.case:05d}-{place}",
        text=text,
        options=item.options,
        answer=item.answer,
        true_options=(item.answer,),
    )
