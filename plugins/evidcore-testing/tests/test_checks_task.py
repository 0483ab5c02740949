import itertools
import json
import re

import pytest
from evidcore_testing import check_task, volume_case

from evidcore.case import Answer, Crop, Prompt, Span, TextPart, VisualPart
from evidcore.contracts import Task, View
from evidcore.volume.reading import read_geometry


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
        ends = (0, depth // 2, depth)
        boxes = [(*some, 0, height, 0, width) for some in itertools.pairwise(ends)]
        return tuple(VisualPart(crop=replaced(part.crop, box_zyx=box)) for box in boxes)


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


class Asks(Sides):
    """The sound task with other prompts."""

    def prompts(self, case, view, seed):
        (prompt,) = super().prompts(case, view, seed)
        return self.others(prompt)


class Nothing(Asks):
    def others(self, prompt):
        return []


class Twice(Asks):
    def others(self, prompt):
        return [prompt, prompt]


class Numbers(Asks):
    turns = itertools.count()

    def others(self, prompt):
        return [replaced(prompt, id=f"{prompt.id}/{next(self.turns)}")]


class Blindfolded(Asks):
    def others(self, prompt):
        return [replaced(prompt, parts=prompt.parts[1:])]


class AboutAPart(Asks):
    """Sound too: of the slices one is shown, and what is not seen on it counts as absent."""

    def others(self, prompt):
        return [replaced(prompt, parts=prompt.parts[1:], case=replaced(prompt.case, findings=()))]


class Looks(Asks):
    def others(self, prompt):
        (part, *words) = prompt.parts
        return [replaced(prompt, parts=(VisualPart(crop=replaced(part.crop, blank=True)), *words))]


class TurnsRound(Asks):
    def others(self, prompt):
        lower, upper, words = prompt.parts
        return [replaced(prompt, parts=(upper, lower, words))]


class Tells(Asks):
    def others(self, prompt):
        return [replaced(prompt, parts=(*prompt.parts, TextPart(text=f"Report: {prompt.case.report.text}")))]


class LosesTheCase(Asks):
    def others(self, prompt):
        return [replaced(prompt, case=replaced(prompt.case, id="another"))]


class KeepsASet(Sides):
    def reference(self, side):
        return {"side": side, "sides": {"left", "right"}}


class KeepsATuple(Sides):
    def reference(self, side):
        return {"side": side, "sides": ("left", "right")}


class CannotReadItsGold(Sides):
    def gold(self, prompt):
        return prompt.reference["side"], ()


class NoGold(Sides):
    def gold(self, prompt):
        return json.loads("no")


class ReadsNothing(Sides):
    def parse(self, prompt, completion):
        answer = super().parse(prompt, completion)
        return replaced(answer, choice=None)


class SpanBeyondGold(Sides):
    def gold(self, prompt):
        text, _ = super().gold(prompt)
        return text, (Span(start=0, end=99, label="abnormal"),)


class RestlessGold(Sides):
    turns = itertools.count()

    def gold(self, prompt):
        text, spans = super().gold(prompt)
        return text, spans[next(self.turns) % 2 :]


class Gullible(Sides):
    def parse(self, prompt, completion):
        return Answer(text=completion, choice="left" if "left" in completion else "right")


class GullibleForWords(Sides):
    def parse(self, prompt, completion):
        return (
            super().parse(prompt, completion)
            if completion != "ventral."
            else Answer(text=completion, choice="left")
        )


class NoReason(Sides):
    def parse(self, prompt, completion):
        answer = super().parse(prompt, completion)
        return answer if answer.malformed is None else replaced(answer, malformed=" ")


class Strips(Sides):
    def parse(self, prompt, completion):
        return super().parse(prompt, completion.strip())


class Raises(Sides):
    def parse(self, prompt, completion):
        if re.search("<think>", completion):
            raise ValueError("unclosed <think>")
        return super().parse(prompt, completion)


class NeedsTags(Sides):
    needs_slice_tags = True


def replaced(item, **changes):
    return type(item)(**{**vars(item), **changes})


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    return [volume_case(folder, seed) for seed in range(4)]


def test_a_sound_task_passes(cases):
    check_task(Sides(), Whole(), cases, garbage=["ventral."])


def test_a_task_may_ask_about_a_part_of_what_is_shown_in_its_order(cases):
    check_task(AboutAPart(), Halves(), cases)
    told = "parts are shown, all or some. got 2 crops in prompt 'case-0/side', 2 shown"
    with pytest.raises(AssertionError, match=told):
        check_task(TurnsRound(), Halves(), cases)


def test_a_task_that_needs_tags_is_not_tried_on_a_view_without(cases):
    with pytest.raises(ValueError, match="NeedsTags needs slice tags, Whole writes none"):
        check_task(NeedsTags(), Whole(), cases)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Nothing, "Nothing breaks its contract: cases that it can ask about .* no prompt for seed 0"),
        (Twice, r"prompts have ids of their own. more than once: \['case-0/side', 'case-1/side'"),
        (Numbers, "equal arguments give equal prompts. not so for 'case-0', seed 0"),
        (Blindfolded, "parts are shown, all or some. got 0 crops in prompt 'case-0/side', 1 shown"),
        (Looks, "parts are shown, all or some. got 1 crops in prompt 'case-0/side', 1 shown"),
        (Tells, "no prompt shows the report. it stands in prompt 'case-0/side'"),
        (LosesTheCase, "a prompt carries its case. got 'another' in prompt 'case-0/side'"),
        (KeepsASet, r"the reference is plain JSON. got \{'side': 'right', 'sides': frozenset"),
        (KeepsATuple, r"the reference is plain JSON. got \{'side': 'right', 'sides': \("),
        (CannotReadItsGold, "gold is read as well-formed. 'right' is malformed: must be 'left.' or 'right.'"),
        (NoGold, "gold is read as well-formed. prompt 'case-0/side' raised JSONDecodeError"),
        (ReadsNothing, "neither choice, report, evidence nor value was read from 'right.'"),
        (SpanBeyondGold, r"labelled spans lie inside gold. got 0\.\.99 in 6 characters"),
        (RestlessGold, "equal prompts have equal gold. not so for 'case-0/side'"),
        (Gullible, "garbage is malformed with a reason. '' is taken as well-formed"),
        (GullibleForWords, r"garbage is malformed with a reason. 'ventral\.' is taken as well-formed"),
        (NoReason, "garbage is malformed with a reason. the reason is empty for ''"),
        (Strips, "an answer holds the completion as written. got '' for '   '"),
        (Raises, "no completion raises. '<think>' raised ValueError: unclosed <think>"),
    ],
)
def test_a_task_that_breaks_a_clause_is_caught(mutant, message, cases):
    with pytest.raises(AssertionError, match=message):
        check_task(mutant(), Whole(), cases, garbage=["ventral."])
