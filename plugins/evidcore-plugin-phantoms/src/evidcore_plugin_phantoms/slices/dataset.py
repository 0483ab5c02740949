"""Data set `phantom-slices`: one slice, one lesion, and a question that only a closer look answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from evidcore.case import Case, Finding, MaskRef, Question, Split, VolumeRef
from evidcore.errors import RecipeError
from evidcore_plugin_phantoms.abdomen.scene import label_of
from evidcore_plugin_phantoms.dataset import Phantoms
from evidcore_plugin_phantoms.slices.patterns import FINDING_OF, LARGEST_PX, PATTERNS, SMALLEST_PX
from evidcore_plugin_phantoms.slices.slice_scene import LETTER, ORDER, SIZE_PX, SMALLEST_CUT_PX, Population

LESION = "lesion"  # its mask, whatever its pattern
STEM = "Which pattern does the lesion have?"


class PhantomSlices(Phantoms[Population]):
    """Abdominal slices with one lesion each, whose pattern is lost where the slice is shown reduced 8 times.

    Volumes are one slice of 512 x 512 pixels of 0.8 mm in HU, stored twice, since a volume has at least two;
    `view = { use = "slices", slices = 1 }` shows it once. The lesion is solid, a ring, stripes or dots;
    each changes the slice by the same sum of HU and as far out, so that an overview of 64 x 64 pixels shows
    where the lesion is, and not what it is. Each pattern is as frequent as the others in every organ, and no
    text tells it. Masks are the organs, the lesion included ("liver"), and the lesion's disc, as "lesion" and
    under the name of the finding ("ring lesion"). `without` gives the same slice with the lesion in another
    pattern. The patients of the splits are drawn from separate random streams, so they are disjoint.
    """

    findings = tuple(FINDING_OF.values())
    folder_name = "phantom-slices"

    def __init__(
        self,
        cache_folder: Path,
        *,
        train_cases: Annotated[int, Ge(0)] = 1000,
        validation_cases: Annotated[int, Ge(0)] = 100,
        test_cases: Annotated[int, Ge(0)] = 300,
        seed: Annotated[int, Ge(0)] = 17,
        radius_px: tuple[float, float] = (SMALLEST_PX, LARGEST_PX),
        cut_px: tuple[()] | tuple[int, int] = (),
        annotated: bool = True,
    ) -> None:
        """Describe the set; nothing is drawn before cases are asked for.

        Args:
            cache_folder: where slices are kept, in a folder named by the hash of all options.
            train_cases: patients to learn from.
            validation_cases: patients to choose by.
            test_cases: patients to measure on.
            seed: every seed is another population.
            radius_px: the least and the largest radius of a lesion, within 4 to 5 pixels.
            cut_px: the least and the largest side of squares that are cut out of the slices around their
                lesions, which lie anywhere in them: pictures of all scales, as an encoder learns from that
                is to read overviews and crops. Empty: whole slices.
            annotated: training cases have findings and masks. Without, they have the slice and the question
                alone; the other splits, all slices and all questions stay as they are.

        Raises:
            RecipeError: if a radius or a side is out of its range; names it.
        """
        least, most = radius_px
        if not SMALLEST_PX <= least <= most <= LARGEST_PX:
            raise RecipeError(
                f"{self.folder_name}: radius_px must be two numbers that do not fall, from {SMALLEST_PX:g} "
                f"to {LARGEST_PX:g} pixels, got {list(radius_px)!r}. The pattern of a larger lesion can be "
                f"told where the slice is reduced 8 times; that of a smaller one cannot be drawn."
            )
        if cut_px and not SMALLEST_CUT_PX <= cut_px[0] <= cut_px[1] <= SIZE_PX:
            raise RecipeError(
                f"{self.folder_name}: cut_px must be empty or two numbers that do not fall, from "
                f"{SMALLEST_CUT_PX} to {SIZE_PX} pixels, got {list(cut_px)!r}."
            )
        population = Population(seed=seed, prior_strength=0.0, radius_px=radius_px, cut_px=cut_px or None)
        counts = {"train": train_cases, "validation": validation_cases, "test": test_cases}
        super().__init__(cache_folder, population, counts)
        self._annotated = annotated

    def _asked(self) -> Mapping[str, Any]:
        return {"annotated": self._annotated}

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of a split; draws them first if they are not in the cache."""
        if not self._counts[split]:
            return
        folder, known = self._drawn(split)
        is_told = self._annotated or split != "train"
        for number, facts in enumerate(known):
            yield Case(
                id=f"{split}-{number:05d}",
                patient=f"phantom-{self._population.seed}-{split}-{number:05d}",
                volumes=(VolumeRef(path=str(folder / f"{number:05d}.nii"), intensity="hu"),),
                findings=_findings(facts) if is_told else (),
                masks=_masks(str(folder / f"{number:05d}.npz"), facts) if is_told else {},
                questions=(self._question(split, number, facts["pattern"]),),
            )

    def _question(self, split: str, number: int, pattern: str) -> Question:
        """Return the question of a case: among four cases, the right option has each letter once."""
        answer = self._population.place_in_group(split, number, LETTER)
        rng = self._population.stream(split, number, ORDER)
        options = [str(each) for each in rng.permutation([each for each in PATTERNS if each != pattern])]
        options.insert(answer, pattern)
        return Question(
            id="pattern",
            text=STEM,
            options=tuple(options),
            answer=answer,
            true_options=(answer,),
            kind=FINDING_OF[pattern],
        )


def _findings(facts: Mapping[str, Any]) -> tuple[Finding, ...]:
    shown = FINDING_OF[facts["pattern"]]
    location = facts["organ"].removeprefix("left ").removeprefix("right ")
    return tuple(
        Finding(name=name, side=facts["side"], size_mm=facts["size_mm"], location=location)
        if name == shown
        else Finding(name=name, state="absent")
        for name in FINDING_OF.values()
    )


def _masks(path: str, facts: Mapping[str, Any]) -> dict[str, MaskRef]:
    """Return the masks by name: the organs that the slice shows, then the lesion, and as what it is."""
    masks = {organ: MaskRef(path=path, key="organs", label=label_of(organ)) for organ in facts["organs"]}
    lesion = MaskRef(path=path, key="lesion")
    return masks | {LESION: lesion, FINDING_OF[facts["pattern"]]: lesion}
