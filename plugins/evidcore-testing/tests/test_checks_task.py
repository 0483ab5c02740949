import dataclasses
import itertools

import pytest
from evidcore_testing import check_task, volume_case

from evidcore.api import Answer, Crop, Prompt, Span, Task, TextPart, View, VisualPart
from evidcore.data.reading import read_geometry


class Whole(View):
    def render(self, case):
        return (VisualPart(crop=Crop(volume=case.volumes[0])),)

    def size_zyx(self, part, encoder):
        return encoder.size_zyx

    def to_source(self, part, box):
        return None


class Halves(Whole):
    def render(self, case):
        (part,) = super().render(case)
        depth, height, width = read_geometry(part.crop.volume).shape_zyx
        ends = itertools.pairwise((0, depth // 2, depth))
        crops = [dataclasses.replace(part.crop, box_zyx=(*some, 0, height, 0, width)) for some in ends]
        return tuple(VisualPart(crop=crop) for crop in crops)


class Sides(Task):
    """On which side is the finding: 'left.' or 'right.'"""

    def prompts(self, case, view, seed):
        shown = case.present()[0]
        side = next(each.side for each in case.findings if each.name == shown)
        parts = (*view.render(case), TextPart(text=f"On which side is the {shown}?"))
        return [
            Prompt(id=f"{case.id}/side", case=case, task="sides", parts=parts, reference=self.reference(side))
        ]

    def reference(self, side):
        return {"side": side}

    def parse(self, prompt, completion):
        if completion not in {"left.", "right."}:
            return Answer(text=completion, malformed=f"must be 'left.' or 'right.', got {completion[:20]!r}")
        return Answer(text=completion, choice=completion[:-1])

    def gold(self, prompt):
        text = f"{prompt.reference['side']}."
        return text, (Span(start=0, end=len(text), label="abnormal"),)


def mutant(**members):
    return type("Mutant", (Sides,), members)


def asks(others):
    """Return the sound task with other prompts."""
    return mutant(prompts=lambda self, *given: [others(item) for item in Sides.prompts(self, *given)])


def with_parts(change):
    return asks(lambda prompt: dataclasses.replace(prompt, parts=change(prompt.parts, prompt.case)))


def reads(change):
    """Return the sound task with other answers."""
    return mutant(parse=lambda self, prompt, text: change(Sides.parse(self, prompt, text), text))


def gives_gold(change):
    return mutant(gold=lambda self, prompt: change(*Sides.gold(self, prompt)))


def raises_on_tags(answer, text):
    if "<think>" in text:
        raise ValueError("unclosed <think>")
    return answer


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    return [volume_case(folder, seed) for seed in range(4)]


def test_a_sound_task_passes(cases):
    check_task(Sides(), Whole(), cases, garbage=["ventral."])


def test_a_task_may_ask_about_a_part_of_what_is_shown_in_its_order(cases):
    upper = asks(
        lambda prompt: dataclasses.replace(
            prompt, parts=prompt.parts[1:], case=dataclasses.replace(prompt.case, findings=())
        )
    )
    check_task(upper(), Halves(), cases)  # what is not seen on its part counts as absent
    turned = with_parts(lambda parts, case: (parts[1], parts[0], parts[2]))
    told = "parts are shown, all or some. got 2 crops in prompt 'case-0/side', 2 shown"
    with pytest.raises(AssertionError, match=told):
        check_task(turned(), Halves(), cases)


def test_a_task_that_needs_tags_is_not_tried_on_a_view_without(cases):
    with pytest.raises(ValueError, match="Mutant needs slice tags, Whole writes none"):
        check_task(mutant(needs_slice_tags=True)(), Whole(), cases)


COUNT = itertools.count()
MUTANTS = {
    "Mutant breaks its contract: cases that it can ask about .* no prompt for seed 0": mutant(
        prompts=lambda self, case, view, seed: []
    ),
    r"prompts have ids of their own. more than once: \['case-0/side', 'case-1/side'": mutant(
        prompts=lambda self, *given: Sides.prompts(self, *given) * 2
    ),
    "equal arguments give equal prompts. not so for 'case-0', seed 0": asks(
        lambda prompt: dataclasses.replace(prompt, id=f"{prompt.id}/{next(COUNT)}")
    ),
    "parts are shown, all or some. got 0 crops in prompt 'case-0/side', 1 shown": with_parts(
        lambda parts, case: parts[1:]
    ),
    "no prompt shows the report. it stands in prompt 'case-0/side'": with_parts(
        lambda parts, case: (*parts, TextPart(text=f"Report: {case.report.text}"))
    ),
    "a prompt carries its case. got 'another' in prompt 'case-0/side'": asks(
        lambda prompt: dataclasses.replace(prompt, case=dataclasses.replace(prompt.case, id="another"))
    ),
    r"the reference is plain JSON. got \{'side': 'right', 'sides': frozenset": mutant(
        reference=lambda self, side: {"side": side, "sides": {"left", "right"}}
    ),
    r"the reference is plain JSON. got \{'side': 'right', 'sides': \(": mutant(
        reference=lambda self, side: {"side": side, "sides": ("left", "right")}
    ),
    "gold is read as well-formed. 'right' is malformed: must be 'left.' or 'right.'": gives_gold(
        lambda text, spans: (text[:-1], ())
    ),
    r"labelled spans lie inside gold. got 0\.\.99 in 6 characters": gives_gold(
        lambda text, spans: (text, (Span(start=0, end=99, label="abnormal"),))
    ),
    "equal prompts have equal gold. not so for 'case-0/side'": gives_gold(
        lambda text, spans: (text, spans[next(COUNT) % 2 :])
    ),
    "neither choice, report, evidence nor value was read from 'right.'": reads(
        lambda answer, text: dataclasses.replace(answer, choice=None)
    ),
    "garbage is malformed with a reason. '' is taken as well-formed": reads(
        lambda answer, text: Answer(text=text, choice="left")
    ),
    "garbage is malformed with a reason. the reason is empty for ''": reads(
        lambda answer, text: dataclasses.replace(answer, malformed=answer.malformed and " ")
    ),
    "an answer holds the completion as written. got '' for '   '": reads(
        lambda answer, text: dataclasses.replace(answer, text=text.strip())
    ),
    "no completion raises. '<think>' raised ValueError: unclosed <think>": reads(raises_on_tags),
}


@pytest.mark.parametrize("message", MUTANTS)
def test_a_task_that_breaks_a_clause_is_caught(message, cases):
    with pytest.raises(AssertionError, match=message):
        check_task(MUTANTS[message](), Whole(), cases, garbage=["ventral."])
