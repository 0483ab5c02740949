"""Data set `sometimes-right`: questions of another one that a model answers neither always nor never."""

import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from evidcore.api import Case, DataError, Dataset
from evidcore.cache import key_of, plain_file
from evidcore.case import Split

log = logging.getLogger(__name__)


class SometimesRight(Dataset):
    """Cases of another data set whose questions were answered right in some of several samples.

    A group of answers that are all right, or all wrong, teaches GRPO nothing. Which questions are left is
    told by a file of answers that evaluation `majority-choice` wrote over the train split: of that split the
    others are dropped, also those that it did not ask, and cases that have no question left. Other splits
    stay.

    Source:
        Jiang et al. 2026, MedVR, arXiv:2604.08203, trains on 36,000 questions filtered from OmniMedVQA. The
        rule is not published; this one is usual where rewards can be checked.
    """

    def __init__(
        self,
        recipe_folder: Path,
        *,
        source: Dataset,
        answers: str,
        least: Annotated[float, Ge(0), Le(1)] = 0.0,
        most: Annotated[float, Ge(0), Le(1)] = 1.0,
    ) -> None:
        """Take the source; nothing is read before cases are asked for.

        Args:
            recipe_folder: relative paths start there.
            source: the data set whose questions are chosen from.
            answers: `answers/….jsonl` of a run; an exact path, or one relative to the recipe.
            least: questions stay where the share of right samples is above this.
            most: and below this.
        """
        self.source, self.least, self.most = source, least, most
        self._path = recipe_folder / answers
        self.derived_from, self.findings = source, source.findings

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases that have a question left, with those that are left."""
        self.left_out = self.source.left_out  # by split, filled as its cases are walked over
        if split != "train":
            yield from self.source.cases(split)
            return
        rates = self._rates()
        asked = kept = 0
        for case in self.source.cases(split):
            known = [(item, rates.get((case.id, item.id), self.least)) for item in case.questions]
            some = tuple(item for item, rate in known if self.least < rate < self.most)
            asked, kept = asked + len(case.questions), kept + len(some)
            if some:
                yield dataclasses.replace(case, questions=some)
        if not kept:
            raise DataError(
                f"sometimes-right: {self._path} leaves none of the {asked} training questions: none was "
                f"answered right in more than {self.least:g} and less than {self.most:g} of its samples. Ask "
                "the train split with evaluation 'majority-choice', or widen least and most."
            )
        log.info("sometimes-right: %d of %d training questions are left", kept, asked)

    def listed(self, split: Split) -> Iterable[Case]:
        return self.source.listed(split)

    def fingerprint(self) -> str:
        """Hash the source's fingerprint, the bounds and which questions stay between them."""
        rates = sorted([*key, self.least < rate < self.most] for key, rate in self._rates().items())
        return key_of([self.source.fingerprint(), rates])

    def _rates(self) -> dict[tuple[str, str], float]:
        """Return the share of right samples by case and question."""
        try:
            lines = [json.loads(line) for line in plain_file(self._path).read_text("utf-8").splitlines()]
        except (OSError, ValueError, RecursionError) as cause:
            raise DataError(f"sometimes-right: {self._path} cannot be read as answers: {cause}") from cause
        return dict(self._rate(number, line) for number, line in enumerate(lines, start=1))

    def _rate(self, number: int, line: Mapping[str, Any]) -> tuple[tuple[str, str], float]:
        try:
            votes, case = list(line["votes"]), str(line["case_id"])
            question = str(line["prompt_id"]).removeprefix(f"{case}:")
            return (case, question), votes.count(line["answer"]) / len(votes)
        except (KeyError, TypeError, ZeroDivisionError) as cause:
            what = f"line {number} of {self._path} has no votes"
            hint = "Let evaluation 'majority-choice' write the answers."
            raise DataError(f"sometimes-right: {what}. {hint}") from cause
