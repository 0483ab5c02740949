"""Completions of known worth, made of a prompt, its gold answer and the gold answers to other prompts."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from evidcore.api import Prompt, Rollout, Task, TextPart
from evidcore.builtin.choice import turned
from evidcore.case import Action, Turn
from evidcore.evaluate.reference_lines import cluster_of
from evidcore.prompts.rows import Row
from evidcore.text.tags import LETTERS, TAG, inside

NEUTRAL = (
    "The images were looked at one after the other, from the first to the last, and then once more. " * 4
)
BRIEF = "The images were looked at."
UNREADABLE = "Zork vumbilt quin."
SHOWN = "The slice is shown."  # by a tool
NOBODYS = "Z"  # a letter that no option has
OTHERS = 3  # gold answers to other prompts that stand as wrong ones
CONSTANTS = 8  # answers that are given to every prompt alike


@dataclasses.dataclass(frozen=True)
class Twin:
    """A completion, what it is, and to which of the audited prompts it belongs."""

    kind: str
    place: int  # of the prompt
    rollout: Rollout


def twins(rows: Sequence[Row], *, thorough: bool) -> list[Twin]:
    """Return the twins of all prompts, in whole groups.

    `thorough`: also what takes many answers. Some are given to every prompt alike, as by a policy that does
    not look, every letter is answered under every order of the options, a tool's reply tells the right
    answer, and a right answer stands among right or wrong ones.

    Raises:
        ValueError: if the task has no gold answer to a prompt.
    """
    golds = [row.task.gold(row.prompt)[0] for row in rows]
    bare = collections.Counter(_within(gold, "think", BRIEF) or gold for gold in golds)
    alike = [text for text, _ in bare.most_common(CONSTANTS)] if thorough else ()
    result: list[Twin] = []
    count = len(rows)

    def group(place: int, answers: Iterable[tuple[str, Rollout]]) -> None:
        number = result[-1].rollout.group + 1 if result else 0
        for kind, rollout in answers:
            result.append(Twin(kind, place, dataclasses.replace(rollout, group=number)))

    for place, (row, gold) in enumerate(zip(rows, golds, strict=True)):
        turned_rows = [index % count for index in range(place + 1, place + count)]  # other patients first
        turned_rows.sort(key=lambda other: cluster_of(rows[other].prompt) == cluster_of(rows[place].prompt))
        elsewhere = [golds[other] for other in turned_rows if _differ(row.prompt, rows[other].prompt)]
        wrong = _wrong(row, gold, list(dict.fromkeys(elsewhere)))
        texts = [("right", gold), *(("wrong", text) for text in wrong), *_varied(row, gold, wrong)]
        texts += [(f"constant {number}", text) for number, text in enumerate(alike)]
        if thorough and (common := _commonest(rows, place)):
            texts.append(("constant option", common))
        group(place, [(kind, _rollout(row.task, row.prompt, text)) for kind, text in texts])
        options = len(options_of(row.prompt))
        for order in ([*range(by, options), *range(by)] for by in range(options)):  # its own first
            if (asked := turned(row.prompt, order)) is None:
                break
            asked = dataclasses.replace(asked, id=f"{row.prompt.id}/turned {order[0]}")
            text = row.task.gold(asked)[0]
            said = [("permuted" if order[0] else "own order", text)]
            said += [("beside", other) for other in _wrong(Row(asked, row.task), text, ())[:1]]
            for letter in LETTERS[:options] if thorough else ():
                said.append((f"letter {letter}", row.task.gold(rekeyed(asked, letter, alone=True))[0]))
            group(place, [(kind, _rollout(row.task, asked, text)) for kind, text in said])
        right, others = _rollout(row.task, row.prompt, gold), [("beside", text) for text in wrong[:1]]
        for kind, prompt in _other_keys(rows, place):
            rollouts = [
                (name, _rollout(row.task, row.prompt, text)) for name, text in [(kind, gold), *others]
            ]
            group(place, [(name, dataclasses.replace(one, prompt=prompt)) for name, one in rollouts])
        if thorough and wrong:
            lost = _rollout(row.task, row.prompt, wrong[0])
            told = [("told the answer", _told(lost, gold)), ("told nothing", _told(lost, SHOWN))]
            group(place, told)
            for kind, sibling in (("among right", right), ("among wrong", lost)):
                group(place, [(kind, right), *[("beside", sibling)] * 2, ("beside", lost)])
    return result


def _told(rollout: Rollout, words: str) -> Rollout:
    """Return an answer before which a tool replied with such words."""
    call = Action(tool="zoom", arguments={"slice": 0, "box": [0, 0, 1000, 1000]})
    turn = Turn(text="Let me look closer.", actions=(call,), reply=(TextPart(text=words),))
    return dataclasses.replace(rollout, turns=(*rollout.turns, turn))


def options_of(prompt: Prompt) -> Sequence[str]:
    """Return the options of a multiple choice, none for other tasks."""
    letter, options = prompt.reference.get("letter"), prompt.reference.get("options")
    return options if letter and options else ()


def _rollout(task: Task, prompt: Prompt, text: str) -> Rollout:
    looks = tuple(task.gold_turns(prompt))  # every twin has looked where the gold answer looks
    return Rollout(prompt=prompt, group=0, text=text, answer=task.parse(prompt, text), turns=looks)


def _differ(one: Prompt, other: Prompt) -> bool:
    """Tell whether right answers to two prompts may differ."""
    return not one.reference or one.reference != other.reference


def _wrong(row: Row, gold: str, elsewhere: Sequence[str]) -> list[str]:
    """Return well-formed wrong answers: each option that is not true, or gold answers to other prompts."""
    prompt, texts = row.prompt, list(elsewhere)
    if options := options_of(prompt):
        right = {prompt.reference["letter"], *(LETTERS[i] for i in prompt.reference.get("true_options", ()))}
        others = [letter for letter in LETTERS[: len(options)] if letter not in right]
        texts = [row.task.gold(rekeyed(prompt, letter))[0] for letter in others]
    sound = [text for text in texts if text != gold and row.task.parse(prompt, text).malformed is None]
    return sound if options else sound[:OTHERS]


def _varied(row: Row, gold: str, wrong: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a right and a wrong answer in other forms."""
    prompt = row.prompt
    broken = [TAG.sub(" ", gold), gold + gold, "", f"<report>{gold}</report>", f"{gold} That is all."]
    for text in dict.fromkeys(broken):
        if text != gold and row.task.parse(prompt, text).malformed is not None:
            yield "malformed", text
    said = ["", *([NOBODYS] if options_of(prompt) else [UNREADABLE])]  # no language, or an absent option
    tagged = [_within(gold, "answer", item) for item in said]
    nothing = said if None in tagged else ["", *filter(None, tagged)]
    yield from (("no answer", text) for text in nothing if text != gold)
    yield "padded", _padded(gold)
    if (brief := _within(gold, "think", BRIEF)) is not None:
        yield "brief", brief
    for text in wrong[:1]:
        bare = _within(text, "think", BRIEF)
        yield "padded wrong", _padded(text)
        yield "format alone", bare or text
        report = prompt.case.report
        if report is not None and report.text != gold:
            yield "copied report", _beside(text, TAG.sub(" ", report.text))
        words = TAG.sub(" ", prompt.words())
        yield "echoed prompt", _beside(text, words) if TAG.search(gold) else words
        if TAG.search(gold):
            yield "echoed prompt", words
    yield from (("everything affirmed", text) for text in _affirmed(row, gold))


def _affirmed(row: Row, gold: str) -> list[str]:
    """Return answers that affirm everything there is to affirm."""
    prompt = row.prompt
    if options := options_of(prompt):
        every = {**prompt.reference, "true_options": list(range(len(options)))}
        text = row.task.gold(dataclasses.replace(prompt, reference=every))[0]
        letters = LETTERS[: len(options)]
        answers = [" or ".join(letters), ", ".join(letters), " or ".join(options)]
        if _within(text, "answer", "") is None:
            return answers
        if len(letters) > 2:  # the right one neither first nor last, where a lenient reader would look
            right = prompt.reference["letter"]
            first, *others = (letter for letter in letters if letter != right)
            answers.append("</answer><answer>".join([first, right, *others]))
        return [_within(text, "answer", said) or text for said in answers]
    names = [item.name for item in prompt.case.findings]
    if not names or TAG.search(gold):
        return []
    affirmed = " ".join(f"There is {name}." for name in names)
    return [affirmed, affirmed + " " + " ".join(f"There is no {name}." for name in names)]


def _padded(text: str) -> str:
    thought = inside(text, "think")
    if thought is not None:
        return str(_within(text, "think", f"{thought} {NEUTRAL}"))
    return f"{NEUTRAL}\n{text}" if TAG.search(text) else f"{text} {NEUTRAL}"


def _beside(text: str, pasted: str) -> str:
    """Return an answer with something pasted where it reasons, or in front of it."""
    return _within(text, "think", pasted) or f"{pasted}\n{text}"


def _within(text: str, tag: str, words: str) -> str | None:
    """Return a completion with other words between such tags, None where it has none."""
    if inside(text, tag) is None:
        return None
    return re.sub(rf"<{tag}>.*</{tag}>", lambda _: f"<{tag}>{words}</{tag}>", text, flags=re.DOTALL)


def _commonest(rows: Sequence[Row], place: int) -> str | None:
    """Return the answer that takes the option which is right most often elsewhere; None where none is."""
    prompt, task = rows[place].prompt, rows[place].task
    options = options_of(prompt)
    others = [row.prompt for row in [*rows[:place], *rows[place + 1 :]]]
    known = [other.reference for other in others if options_of(other)]
    right = collections.Counter(item["options"][LETTERS.index(item["letter"])] for item in known)
    if not options or not right:
        return None
    chosen = LETTERS[max(range(len(options)), key=lambda index: right[options[index]])]
    text = task.gold(rekeyed(prompt, chosen))[0]
    return _within(text, "think", BRIEF) or text


def rekeyed(prompt: Prompt, letter: str, *, alone: bool = False) -> Prompt:
    """Return a multiple choice of which another option is the right one; `alone`: the only true one."""
    reference = dict(prompt.reference)
    old, new = LETTERS.index(reference["letter"]), LETTERS.index(letter)
    if "true_options" in reference:
        others = set() if alone else {*reference["true_options"]} - {old}
        reference["true_options"] = sorted(others | {new})
    return dataclasses.replace(prompt, reference={**reference, "letter": letter})


def _other_keys(rows: Sequence[Row], place: int) -> Iterator[tuple[str, Prompt]]:
    """Yield a prompt with another right answer, and with another patient's case.

    Each has an id of its own: a reward may look something up by it.
    """
    prompt = rows[place].prompt
    options = options_of(prompt)
    key, case = f"{prompt.id}/another key", f"{prompt.id}/another case"
    if options:
        following = (LETTERS.index(prompt.reference["letter"]) + 1) % len(options)
        yield "another key", dataclasses.replace(rekeyed(prompt, LETTERS[following]), id=key)
    for row in [*rows[place + 1 :], *rows[:place]]:
        other = row.prompt
        if cluster_of(other) != cluster_of(prompt) and _differ(prompt, other):
            yield "another case", dataclasses.replace(prompt, case=other.case, id=case)
            if not options:
                reference = other.reference
                yield "another key", dataclasses.replace(prompt, case=other.case, reference=reference, id=key)
            return
