import dataclasses
import random

import pytest
from evidcore_plugin_phantoms.language.documents import (
    DocumentDrawer,
    prefix_ids,
    prompt_ids,
    visual_tokens,
)

from evidcore.builtin.choice import Choice
from evidcore.builtin.report import ReportTask
from evidcore.builtin.views import Slices, Volume
from evidcore.errors import DataError
from evidcore.model.template import read_turns

TASKS = {"choice": Choice(), "report": ReportTask()}


def test_the_prefix_has_the_asked_length_and_says_the_impression(cases, tokenizer):
    for seed in range(20):
        ids = prefix_ids(tokenizer, cases[0], 24, random.Random(seed))
        assert len(ids) == 24
        text = tokenizer.decode(ids)
        assert cases[0].notes["impression"].removesuffix(".") in text
        assert set(text.replace(cases[0].notes["impression"].removesuffix("."), "")) <= {".", " "}


def test_sentences_that_do_not_fit_the_prefix_are_left_out_whole(cases, tokenizer):
    case = dataclasses.replace(cases[0], notes={"impression": "Lung nodule. Cardiomegaly. Emphysema."})
    text = tokenizer.decode(prefix_ids(tokenizer, case, 4, random.Random(0)))
    said = [name for name in ("Lung nodule", "Cardiomegaly", "Emphysema") if name in text]
    assert len(said) == 2


def test_a_share_of_the_sentences_is_left_out(cases, tokenizer):
    case = dataclasses.replace(cases[0], notes={"impression": "Lung nodule. Cardiomegaly. Emphysema."})
    rng, said = random.Random(0), 0
    for _ in range(400):
        ids = prefix_ids(tokenizer, case, 24, rng, 0.3)
        assert len(ids) == 24
        said += sum(name in tokenizer.decode(ids) for name in ("Lung nodule", "Cardiomegaly", "Emphysema"))
    assert abs(said / 1200 - 0.7) < 0.05


def test_the_same_dice_give_the_same_prefix(cases, tokenizer):
    assert prefix_ids(tokenizer, cases[0], 24, random.Random(3)) == prefix_ids(
        tokenizer, cases[0], 24, random.Random(3)
    )


@pytest.mark.parametrize("impression", [None, "", 3])
def test_a_case_without_an_impression_is_named(cases, tokenizer, impression):
    case = dataclasses.replace(cases[0], notes={"impression": impression})
    with pytest.raises(DataError, match=rf"case 'case-0': notes\['impression'\] is {impression!r}"):
        prefix_ids(tokenizer, case, 8, random.Random(0))


def test_the_prefix_stands_where_the_volume_would(cases, tokenizer):
    prompt = Choice().prompts(cases[0], Volume(), 0)[0]
    turns = read_turns(tokenizer, where="here")
    text = tokenizer.decode(prompt_ids(tokenizer, turns, prompt, tokenizer("Lung nodule.").input_ids))
    assert text.startswith(
        "<|im_start|>user\n<|vision_start|>Lung nodule.<|vision_end|>Which finding is present?\n"
        "A) lung nodule\n"
    )
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_where_slices_are_shown_the_prefix_runs_through_them(cases, tokenizer):
    view = Slices(slices=3)
    task = ReportTask()
    prompt = task.prompts(cases[0], view, 0)[0]
    assert visual_tokens(prompt, 4) == 12
    prefix = list(range(1000, 1011))
    ids = prompt_ids(tokenizer, read_turns(tokenizer, where="here"), prompt, prefix)
    start, stop = tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])
    shown = [ids[at + 1 : ids.index(stop, at)] for at, token in enumerate(ids) if token == start]
    assert [len(each) for each in shown] == [3, 4, 4]
    assert [token for each in shown for token in each] == prefix


def test_documents_are_a_prompt_and_its_gold_answer(cases, tokenizer):
    drawer = DocumentDrawer(tokenizer, TASKS, Volume(), 24, cases, {"report": 0.0})
    for ease in (0.0, 0.5, 1.0):
        one = drawer.draw(random.Random(1), ease)
        answer = tokenizer.decode(one.answer_ids)
        assert answer.startswith("<think>A ")
        assert answer.endswith("</answer><|im_end|>")
        assert answer.count(" present.") == 1


def test_easy_documents_have_short_prefixes_and_the_last_ones_are_full(cases, tokenizer):
    drawer = DocumentDrawer(tokenizer, {"report": ReportTask()}, Volume(), 60, cases, {})

    def prefix_tokens(ease):
        one = drawer.draw(random.Random(5), ease)
        start, stop = (tokenizer.convert_tokens_to_ids(f"<|vision_{edge}|>") for edge in ("start", "end"))
        assert one.shows.index(True) == one.prompt_ids.index(start) + 1
        assert one.prompt_ids.index(stop) - one.prompt_ids.index(start) - 1 == sum(one.shows)
        return sum(one.shows)

    assert prefix_tokens(1.0) == 16
    assert prefix_tokens(0.0) == 60


def test_mistakes_are_named(cases, tokenizer):
    with pytest.raises(DataError, match="shares names 'reports'; tasks: choice, report"):
        DocumentDrawer(tokenizer, TASKS, Volume(), 20, cases, {"reports": 1.0})
    with pytest.raises(DataError, match="no training case has a present finding"):
        DocumentDrawer(tokenizer, TASKS, Volume(), 20, [], {})
    bare = [dataclasses.replace(case, report=None) for case in cases]
    with pytest.raises(DataError, match="100 draws in a row asked nothing; tasks: report"):
        DocumentDrawer(tokenizer, {"report": ReportTask()}, Volume(), 20, bare, {}).draw(
            random.Random(0), 0.0
        )
