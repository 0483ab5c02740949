"""What the settling test found: pay by condition, and an outcome for each."""

import dataclasses
from collections.abc import Mapping

from evidcore.contracts.judging import Checked, Outcome
from evidcore_plugin_emrl.reader_habits import Habits
from evidcore_plugin_emrl.reading_figures import LEAST_SENSITIVITY, LEAST_SPECIFICITY

MOST_LEAKED = 0.05  # upper bound of what a contradicting slice, or a false finding, may be paid
LEAST_RIGHT = {"whole": 0.4, "local": 0.6}  # perfect eyes do not reach 1: no slice shows all findings
LEAST_OF_EYES = 0.8  # of what perfect eyes are paid, bound to findings, or where that is less
ENOUGH_PAIRS = 200
FALSE = "false finding"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pay:
    """Mean pay of a condition; bounds of 95 % over patients, None for fewer than 20 of them."""

    value: float
    low: float | None
    high: float | None
    pairs: int
    eyes: float | None  # what perfect eyes are paid

    def __str__(self) -> str:
        bounds = "" if self.low is None else f" (95 % {self.low:.3f} to {self.high:.3f})"
        return f"{self.value:.3f}{bounds}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settled:
    """What the settling test found."""

    agreement: str  # the reward's option
    bind: str  # the reward's option
    pays: Mapping[str, Pay]  # by condition, and FALSE
    sensitivity: float | None  # of findings that the right slices show
    specificity: float | None  # of lesion-free slices
    named_on: Mapping[str, float]  # share of blank slices, and of noise, on which something is named
    habits: Habits
    looks: int
    kappa: float | None  # of a second reader; None without one

    def checks(self) -> list[Checked]:
        """Return an outcome for the reader, for what it goes by, and for each condition."""
        conditions = [self._condition(name, pay) for name, pay in self.pays.items()]
        return [self._reader(), self._habit(), *conditions]

    def _reader(self) -> Checked:
        low = [(self.sensitivity or 0.0) < LEAST_SENSITIVITY, (self.specificity or 0.0) < LEAST_SPECIFICITY]
        says = (
            f"names {_share(self.sensitivity)} of the findings that the right slices show, leaves "
            f"{_share(self.specificity)} of lesion-free slices alone"
        )
        says += f" ({LEAST_SENSITIVITY:.0%} and {LEAST_SPECIFICITY:.0%} are needed)" if any(low) else ""
        says += "" if self.kappa is None else f"; kappa with the second reader {self.kappa:.3f}"
        shares = {"sensitivity": self.sensitivity, "specificity": self.specificity, "kappa": self.kappa}
        figures = {name: value for name, value in shares.items() if value is not None}
        outcome: Outcome = "note" if any(low) else "fine"
        return Checked(check="settling: reader", outcome=outcome, says=says, figures=figures)

    def _habit(self) -> Checked:
        always = ", ".join(sorted(self.habits.always)) or "nothing"
        words = {
            "lesions": "the reader goes by the lesions of the slice",
            "always": f"the reader says the same of every slice: {always}",
            "height": "the reader goes by the slice's height in the scan",
            "patient": "the reader goes by the patient and not by the slice: by "
            + ("the file" if self.named_on["blank"] > 0.5 else "something that all slices of a patient show"),
        }
        explained = self.habits.explained
        names = {"lesions": "masks", "always": "the commonest answer"}
        shares = ", ".join(f"{names.get(name, name)} {share:.0%}" for name, share in explained.items())
        says = (
            f"{words[self.habits.goes_by]}; explained of its answers to {self.looks} slices: {shares}; "
            f"something is named on {self.named_on['blank']:.0%} of blank slices, "
            f"{self.named_on['noise']:.0%} of noise"
        )
        figures = {**explained, **{f"named on {name}": share for name, share in self.named_on.items()}}
        outcome: Outcome = "fine" if self.habits.goes_by == "lesions" else "alarm"
        return Checked(check="settling: goes by", outcome=outcome, says=says, figures=figures)

    def _condition(self, name: str, pay: Pay) -> Checked:
        outcome, why = self._outcome(name, pay)
        eyes = "-" if pay.eyes is None else f"{pay.eyes:.3f}"
        says = f"pays {pay} over {pay.pairs} pairs, perfect eyes {eyes}"
        says += f"; {why}" if why else ""
        known = dataclasses.asdict(pay).items()
        figures = {key: float(value) for key, value in known if value is not None}
        return Checked(check=f"settling: {name}", outcome=outcome, says=says, figures=figures)

    def _outcome(self, name: str, pay: Pay) -> tuple[Outcome, str]:
        if name in ("swapped", "invented") and self.bind == "slice":
            return "fine", "by its formula, which has no report in it"
        if pay.high is None or pay.low is None:
            return "note", f"{pay.pairs} pairs are too few to say; raise --limit"
        if name == "right":
            least, line = LEAST_RIGHT[self.agreement], ""
            if pay.eyes is not None and (self.bind == "finding" or pay.eyes < least):
                least, line = LEAST_OF_EYES * pay.eyes, f", {LEAST_OF_EYES:.0%} of what perfect eyes are paid"
            if pay.value < least:
                return "alarm", f"at least {least:.3g} is needed{line}"
        elif name in ("contradicting", FALSE) and pay.high > MOST_LEAKED:
            if pay.low <= MOST_LEAKED and pay.pairs < ENOUGH_PAIRS:
                return "note", f"{pay.pairs} pairs are too few to tell it from {MOST_LEAKED}; raise --limit"
            return "alarm", f"the upper bound may be {MOST_LEAKED} at most"
        return "fine", ""


def _share(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.1%}"
