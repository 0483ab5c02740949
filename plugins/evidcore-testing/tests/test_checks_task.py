import dataclasses
import itertools

import pytest
from evidcore_testing import check_task
from mutants import altered, caught, changing

from evidcore.api import Answer, Span, TextPart
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Slices, Volume

COUNT = itertools.count()


def asking(change):
    """Return the sound task with other prompts."""
    return changing(Choice, "prompts", lambda prompts: [change(prompt) for prompt in prompts])


def refers(**more):
    return asking(lambda prompt: dataclasses.replace(prompt, reference={**prompt.reference, **more}))


def showing(change):
    return asking(lambda prompt: dataclasses.replace(prompt, parts=change(prompt.parts)))


def reading(change):
    """Return the sound task with other answers."""
    return changing(Choice, "parse", change)


def reads_as(**fields):
    return reading(lambda answer: dataclasses.replace(answer, **fields))


def giving(change):
    """Return the sound task with other gold: a text and its spans."""
    return changing(Choice, "gold", lambda gold: change(*gold))


def quotes(prompt):
    return dataclasses.replace(
        prompt, parts=(*prompt.parts, TextPart(text=f"Report: {prompt.case.report.text}"))
    )


def of_another_case(prompt):
    return dataclasses.replace(prompt, case=dataclasses.replace(prompt.case, id="another"))


def raises_on_tags(answer):
    if answer.text == "<think>":
        raise ValueError("unclosed <think>")
    return answer


def counted(prompt):
    return dataclasses.replace(prompt, id=f"{prompt.id}/{next(COUNT)}")


PROMPT = "prompt 'case-0:case-0-question-0'"
MUTANTS = {
    "cases that it can ask about .* no prompt for seed 0": altered(Choice, prompts=lambda self, *given: []),
    r"ids of their own. more than once: \['case-0:case-0-question-0', 'case-1":
        changing(Choice, "prompts", lambda prompts: prompts * 2),
    "equal arguments give equal prompts. not so for 'case-0', seed 0": asking(counted),
    f"parts are shown, all or some. got 0 crops in {PROMPT}, 1 shown": showing(lambda parts: parts[1:]),
    f"no prompt shows the report. it stands in {PROMPT}": asking(quotes),
    f"a prompt carries its case. got 'another' in {PROMPT}": asking(of_another_case),
    r"the reference is plain JSON. got .*'sides': frozenset": refers(sides={"left", "right"}),
    r"the reference is plain JSON. got .*'sides': \(": refers(sides=("left", "right")),
    "gold is read as well-formed. '<think>.* is malformed: ": giving(lambda text, spans: (text[:-1], ())),
    r"labelled spans lie inside gold. got 0\.\.999 in \d+ characters":
        giving(lambda text, spans: (text, (Span(start=0, end=999, label="abnormal"),))),
    f"equal prompts have equal gold. not so for {PROMPT[7:]}":
        giving(lambda text, spans: (text, (Span(start=0, end=next(COUNT) % 9 + 1, label="normal"),))),
    "neither choice, report, evidence nor value was read from '<think>": reads_as(choice=None),
    "garbage is malformed with a reason. '' is taken as well-formed":
        reading(lambda answer: Answer(text=answer.text, choice="A")),
    "garbage is malformed with a reason. the reason is empty for ''":
        reading(lambda answer: dataclasses.replace(answer, malformed=answer.malformed and " ")),
    "an answer holds the completion as written. got '' for '   '":
        reading(lambda answer: dataclasses.replace(answer, text=answer.text.strip())),
    "no completion raises. '<think>' raised ValueError: unclosed <think>": reading(raises_on_tags),
}  # fmt: skip


def test_a_sound_task_passes(cases):
    check_task(Choice(), Volume(), cases, garbage=["<answer>E</answer>"])


def test_a_task_may_ask_about_a_part_of_what_is_shown_in_its_order(cases):
    def upper(prompt):  # what is not seen on its part counts as absent
        return dataclasses.replace(
            prompt, parts=prompt.parts[2:], case=dataclasses.replace(prompt.case, findings=())
        )

    check_task(asking(upper)(), Slices(slices=2), cases)
    turned = showing(lambda parts: (*parts[2:4], *parts[:2], *parts[4:]))
    with caught(f"parts are shown, all or some. got 2 crops in {PROMPT}, 2 shown"):
        check_task(turned(), Slices(slices=2), cases)


def test_a_task_that_needs_tags_is_not_tried_on_a_view_without(cases):
    with pytest.raises(ValueError, match="Mutant needs slice tags, Volume writes none"):
        check_task(altered(Choice, needs_slice_tags=True)(), Volume(), cases)


@pytest.mark.parametrize("message", MUTANTS)
def test_a_task_that_breaks_a_clause_is_caught(message, cases):
    with caught(message):
        check_task(MUTANTS[message](), Volume(), cases)
