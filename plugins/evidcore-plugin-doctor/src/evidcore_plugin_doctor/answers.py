"""Labels, the report and the right answers of a case that contradict each other.

Of a question that is answered by yes or no, the words that are left without those of asking name a finding:
"Is there a large effusion?" asks for another one than "Is there an effusion?". Of a question that holds no
other words ("Which of these is present?") the right option does. All else is compared only where the same
words and options come again. Questions are told by their ids: their words may be a patient's.
"""

import collections
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from evidcore_plugin_tables.csv_rows import shown

from evidcore.api import Case, Question
from evidcore.builtin.choice import IN_ORDER
from evidcore.case import Side, State
from evidcore_plugin_doctor.fault import Fault
from evidcore_plugin_doctor.statements import ASKING, NOUN, Claim, claims, named_side, plain_name

_SIDES: Mapping[str, Side] = {"left": "left", "right": "right", "both": "both", "bilateral": "both"}
_STATES: Mapping[str, State] = {"yes": "present", "true": "present", "no": "absent", "false": "absent"}


class _Stated(NamedTuple):
    text: str
    name: str  # of a finding; "" where it is of none
    claim: Claim  # in a sentence from 1 where it is the report's
    asked: tuple[object, ...] = ()  # of an answer: what questions share that ask for the same
    right: tuple[str, ...] = ()  # the options that hold as far as is known, the answer first
    is_option: bool = False  # others may hold beside it

    def excludes(self, other: "_Stated", known: set[str]) -> bool:
        """Tell whether both cannot be true; options that are `known` to be present hold beside each other."""
        if self.asked and self.asked == other.asked and not known >= {self.name, other.name}:
            return self.right[0] not in other.right and other.right[0] not in self.right
        name, longer = sorted((self.name, other.name), key=len)
        plurals = (f"{name}s", f"{name}es") if self.asked or other.asked else ()
        if not name or longer not in (name, *plurals):
            return False
        sides = {claim.state: claim.side for claim in (self.claim, other.claim)}
        if sides.keys() == {"present", "absent"}:
            return sides["absent"] in (None, sides["present"]) or sides["present"] == "both"
        # a report that is plain names no other side anywhere
        is_of_report = sides.keys() == {"present"} and self.claim.sentence + other.claim.sentence > 0
        return is_of_report and {self.claim.side, other.claim.side} == {"left", "right"}


def contradictions(case: Case) -> Iterator[Fault]:
    """Yield the label or answer of a case that an earlier one or the report excludes, one of each finding."""
    labels = []
    for item in case.findings:
        name, side = named_side(item.name)
        claim = Claim(item.state, side or item.side, 0)
        labels.append(_Stated(f"label {item.name!r} says {claim}", name, claim))
    answers = [_answer(question) for question in (*case.questions, *_free(case))]
    stated = []
    for name, claim in claims(case, {item.name for item in (*labels, *answers)} - {""}).items():
        text = f"the report says {claim} (sentence {claim.sentence})"
        side = claim.side if claim.state == "present" else None  # "no effusions on both sides" leaves none
        stated.append(_Stated(text, name, Claim(claim.state, side, claim.sentence)))
    stated += [*labels, *answers]
    known = {item.name for item in stated if item.claim.state == "present" and not item.is_option} - {""}
    earlier: dict[object, list[_Stated]] = collections.defaultdict(list)
    reported: set[object] = set()
    for new in stated:
        marks = {mark for mark in (new.asked, re.sub("e?s$", "", new.name)) if mark}
        others = (item for mark in marks for item in earlier[mark] if new.excludes(item, known))
        if not marks & reported and (first := next(others, None)) is not None:
            reported |= marks
            text = f"{new.text}, {first.text}. Look at the scan, and correct what is wrong."
            part = "" if first.claim.sentence else "answer"
            yield Fault(check="label", part=part, severity="warning", case=case.id, text=text)
        for mark in marks:
            earlier[mark].append(new)


def _free(case: Case) -> Iterator[Question]:
    """Yield the questions with a free text answer that say yes or no."""
    options = (*_STATES,)
    for item in case.notes.get("open_questions", ()):
        words = {answer.casefold() for answer in item["answers"]}
        if len(words) == 1 and words <= {*options}:
            yield Question(id=item["id"], text=item["text"], options=options, answer=options.index(*words))


def _asked(text: str) -> tuple[str, Side | None]:
    """Return which finding a question names and on which side; "" where it names none, or several sides."""
    words = plain_name(text)
    sides = {_SIDES[word] for word in words.split() if word in _SIDES}
    name = " ".join(ASKING.sub(" ", words).split())
    return ("", None) if len(sides) > 1 else (name, sides.pop() if sides else None)


def _answer(question: Question) -> _Stated:
    """Return what the right answer says."""
    right, (name, side) = question.options[question.answer], _asked(question.text)
    options = [*map(_plain, question.options)]
    is_option = not {*options} <= _STATES.keys()
    if is_option:
        option, option_side = _asked(right)
        name, side = "" if NOUN.sub("", name).strip() else option, side or option_side
    is_fixed = any(map(IN_ORDER.search, question.options))  # an option names others by letter or place
    asked = (_plain(question.text), question.kind, *(options if is_fixed else sorted(options)))
    claim = Claim("present" if is_option else _STATES[options[question.answer]], side, 0)
    hold = tuple(options[place] for place in (question.answer, *question.true_options))
    text = f"question {question.id!r} is answered {shown(right)}"
    return _Stated(text, name, claim, asked, hold, is_option)


def _plain(text: str) -> str:
    """Return a text whatever its case and blanks."""
    return " ".join(re.findall(r"\w+|[^\w\s]", text.casefold()))
