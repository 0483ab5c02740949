"""Multiple-choice questions as published: options A to D, and an answer by letter or by text."""

from collections.abc import Mapping

from evidcore.api import Question


class Unanswerable(ValueError):
    """A published question whose answer cannot be told from its options; says why."""


def question(
    id: str, text: str, options: Mapping[str, str], *, letter: str = "", answer: str = ""
) -> Question:
    """Return a question from its options by letter.

    Empty options are dropped. The answer is the option under `letter`; where the letter is empty, the one
    whose text is `answer`, without regard to case, spaces and a full stop at the end.

    Raises:
        Unanswerable: if there are fewer than two options, or none of them is the answer, or letter and text
            name different ones.
    """
    kept = {name: option.strip() for name, option in options.items() if option and option.strip()}
    if len(kept) < 2:
        raise Unanswerable(f"question {id!r} has {len(kept)} options, at least 2 are needed")
    right = letter.strip().strip("().:").upper()
    if right and right not in kept:
        raise Unanswerable(f"question {id!r} has options {', '.join(kept)}, its answer is {letter!r}")
    same = [name for name, option in kept.items() if _plain(option) == _plain(answer)]
    if right and answer and same and right not in same:
        why = f"gives {letter!r} as its answer, but its answer's text {answer!r} is {same[0]!r}"
        raise Unanswerable(f"question {id!r} {why}")
    if not right and not same:
        raise Unanswerable(f"question {id!r} has no option {answer!r}: {', '.join(map(repr, kept.values()))}")
    right = right or same[0]
    names = list(kept)
    return Question(
        id=id,
        text=text.strip(),
        options=tuple(kept.values()),
        answer=names.index(right),
        true_options=tuple(
            index for index, name in enumerate(names) if _plain(kept[name]) == _plain(kept[right])
        ),
    )


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(". ")
