"""What stands twice: ids in a data set; patients and scans in two splits, of all data sets of a recipe."""

import collections
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from evidcore.api import Case
from evidcore.case import Split
from evidcore_plugin_doctor.fault import Fault, Severity


class Home(NamedTuple):
    """A case and where it stands."""

    dataset: str
    split: Split
    case: Case

    def excludes(self, other: "Home") -> bool:
        """Tell whether a scan or report of one must not be of the other: data sets may share a split."""
        return self.split != other.split if self.dataset != other.dataset else self.case.id != other.case.id

    @property
    def owner(self) -> str:
        """Return the patient, over all data sets, or the case where nobody knows him."""
        return self.case.patient or f"case {self.case.id} of {self.dataset}"

    def id_within(self, dataset: str, quote: Callable[[str], str] = str) -> str:
        """Return the case's id, with its data set where that is another."""
        of = "" if self.dataset == dataset else f" of data set {self.dataset!r}"
        return f"{quote(self.case.id)}{of}"


def repeated(
    marks: Sequence[object], homes: Sequence[Home], is_wrong: Callable[[Home, Home], bool]
) -> dict[int, int]:
    """Return by number the homes whose mark an earlier one must not have, with that: of its own set first."""
    known: dict[object, dict[tuple[str, Split], int]] = collections.defaultdict(dict)
    result: dict[int, int] = {}
    for number, (mark, home) in enumerate(zip(marks, homes, strict=True)):
        if mark is not None:
            same = sorted(known[mark].values(), key=lambda item: homes[item].dataset != home.dataset)
            wrong = [item for item in same if is_wrong(home, homes[item])]
            result |= {number: wrong[0]} if wrong else {}
            known[mark].setdefault((home.dataset, home.split), number)
    return result


def shared_names(homes: Sequence[Home], start: int) -> Iterator[Fault]:
    """Yield the ids from `start` on that stand twice, and patients and ids of two splits, however spelt.

    Of other data sets only equal names of patients count: many number theirs, as 1 or as 001.
    """
    for what, spelt in (("id", str), ("patient", str), ("patient", _folded), ("id", _folded)):
        yield from _shared(homes, start, what, spelt)


def _shared(homes: Sequence[Home], start: int, what: str, spelt: Callable[[str], str]) -> Iterator[Fault]:
    names, is_exact = [getattr(home.case, what) for home in homes], spelt is str
    is_id, is_far = what == "id" and is_exact, what == "patient" and is_exact
    marks = [name and (spelt(name), is_far or home.dataset) for name, home in zip(names, homes, strict=True)]

    def is_wrong(home: Home, other: Home) -> bool:
        is_same = getattr(home.case, what) == getattr(other.case, what)
        return is_id or (is_same == is_exact and home.split != other.split)

    reported = set()
    for number, first in repeated(marks, homes, is_wrong).items():
        home, other, name = homes[number], homes[first], names[number]
        if number < start or (name, home.split) in reported:
            continue
        reported.add((name, home.split))
        severity: Severity = "error" if is_exact else "warning"
        quote = repr if is_exact else ascii
        of = other.id_within(home.dataset, quote)
        text = f"{what} {quote(name)} is in {home.split} and, with case {of}, "
        if is_id:
            text = f"the id stands in {other.split} already, again in {home.split}. Give each case its own."
        elif is_exact:
            text += f"in {other.split}. Move one of them: a patient may be in one split only."
        else:
            text += f"{names[first]!a} in {other.split}: they differ in case, Unicode form, blanks or zeros"
            text += f" alone. Write a {what} in one way, or rename one if they are two."
        yield Fault(check="id" if is_id else "split", severity=severity, case=home.case.id, text=text)


def _folded(name: str) -> str:
    """Return a name without case, blanks, invisible characters, its form in Unicode and a number's zeros."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    bare = "".join(sign for sign in plain if unicodedata.category(sign) not in {"Zs", "Cf", "Cc"})
    number = re.fullmatch(r"0*(\d+)(\.0+)?", bare)  # tables lose zeros before, and write 17 as 17.0
    return number[1] if number else bare
