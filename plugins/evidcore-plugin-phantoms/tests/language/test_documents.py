import dataclasses
import random

import numpy as np
import pytest
from evidcore_plugin_phantoms.language.documents import DocumentDrawer, shown_ids
from evidcore_plugin_reports.task import ReportTask

from evidcore.api import DataError, Finding, MaskRef, VisualPart
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Slices, Volume

TASKS = {"choice": Choice(), "report": ReportTask()}


def whole(tokenizer, case, tokens, rng, *omitted):
    """Return what stands for a volume that is shown whole."""
    (prompt,) = ReportTask().prompts(case, Volume(), 0)
    (ids,) = shown_ids(tokenizer, prompt, tokens, rng, *omitted)
    return ids


def test_the_prefix_has_the_asked_length_and_says_the_impression(cases, tokenizer):
    for seed in range(20):
        ids = whole(tokenizer, cases[0], 24, random.Random(seed))
        assert len(ids) == 24
        text = tokenizer.decode(ids)
        assert cases[0].notes["impression"].removesuffix(".") in text
        assert set(text.replace(cases[0].notes["impression"].removesuffix("."), "")) <= {".", " "}


def test_sentences_that_do_not_fit_the_prefix_and_a_share_of_them_are_left_out_whole(cases, tokenizer):
    case = dataclasses.replace(cases[0], notes={"impression": "Lung nodule. Cardiomegaly. Emphysema."})

    def said(*given):
        ids = whole(tokenizer, case, *given)
        assert len(ids) == given[0]
        return sum(name in tokenizer.decode(ids) for name in ("Lung nodule", "Cardiomegaly", "Emphysema"))

    assert said(4, random.Random(0)) == 2
    rng = random.Random(0)
    assert abs(sum(said(24, rng, 0.3) for _ in range(400)) / 1200 - 0.7) < 0.05


@pytest.mark.parametrize("impression", [None, "", 3])
def test_a_case_without_an_impression_is_named(cases, tokenizer, impression):
    case = dataclasses.replace(cases[0], notes={"impression": impression})
    with pytest.raises(DataError, match=rf"case 'case-0': notes\['impression'\] is {impression!r}"):
        whole(tokenizer, case, 8, random.Random(0))


def test_the_prefix_stands_where_the_volume_would(cases, tokenizer):
    prompt = Choice().prompts(cases[0], Volume(), 0)[0]
    drawer = DocumentDrawer(tokenizer, TASKS, Volume(), 24, cases, {})
    text = tokenizer.decode(drawer.prompt_ids(prompt, [tokenizer("Lung nodule.").input_ids])[0])
    assert text.startswith(
        "<|im_start|>user\n<|vision_start|>Lung nodule.<|vision_end|>Which finding is present?\n"
        "A) lung nodule\n"
    )
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_sentences_stand_on_the_slice_that_shows_most_of_their_finding(cases, tokenizer, tmp_path):
    masks = {"lung nodule": {2: 9, 7: 4}, "emphysema": {5: 3}}
    for name, areas in masks.items():
        mask = np.zeros((12, 16, 16), bool)
        for z, area in areas.items():
            mask[z, 0, :area] = True
        np.save(tmp_path / f"{name}.npy", mask)
    case = dataclasses.replace(
        cases[0],
        notes={"impression": "Lung nodule. Cardiomegaly. Emphysema."},
        findings=tuple(Finding(name=name, state="present") for name in ("nodule", *masks, "cardiomegaly")),
        masks={name: MaskRef(path=str(tmp_path / f"{name}.npy")) for name in masks},
    )
    (prompt,) = ReportTask().prompts(case, Slices(slices=12), 0)
    places = set()
    for seed in range(40):
        shown = shown_ids(tokenizer, prompt, 4, random.Random(seed))
        assert [len(each) for each in shown] == [4] * 12
        said = [tokenizer.decode(each) for each in shown]
        assert [z for z, text in enumerate(said) if "Lung nodule" in text] == [2]
        assert [z for z, text in enumerate(said) if "Emphysema" in text] == [5]
        places |= {z for z, text in enumerate(said) if "Cardiomegaly" in text}
    assert len(places) > 6  # no mask tells where
    slices = [part for part in prompt.parts if isinstance(part, VisualPart)]
    for z, names in {2: {"Lung nodule"}, 5: {"Emphysema"}, 9: set()}.items():
        item = dataclasses.replace(prompt, parts=[slices[z]])
        (ids,) = shown_ids(tokenizer, item, 24, random.Random(0))
        words = ("Lung nodule", "Emphysema", "Cardiomegaly")
        assert {name for name in words if name in tokenizer.decode(ids)} == {"Cardiomegaly", *names}


def test_what_stands_for_slices_comes_behind_their_tags(cases, tokenizer):
    prompt = ReportTask().prompts(cases[0], Slices(slices=3), 0)[0]
    said = [[1000, 1001], [1002, 1003], [1004, 1005]]
    ids, shows = DocumentDrawer(tokenizer, TASKS, Slices(slices=3), 2, cases, {}).prompt_ids(prompt, said)
    assert [token for token, shown in zip(ids, shows, strict=True) if shown] == [*range(1000, 1006)]
    start, stop = tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])
    assert [ids[at + 1 : ids.index(stop, at)] for at, token in enumerate(ids) if token == start] == said


def test_documents_are_a_prompt_and_its_gold_answer(cases, tokenizer):
    drawer = DocumentDrawer(tokenizer, TASKS, Volume(), 24, cases, {"report": 0.0})
    for ease in (0.0, 0.5, 1.0):
        item = drawer.draw(random.Random(1), ease)
        answer = tokenizer.decode(item.answer_ids)
        assert answer.startswith("<think>A ")
        assert answer.endswith("</answer><|im_end|>")
        assert answer.count(" present.") == 1


def test_easy_documents_have_short_prefixes_and_the_last_ones_are_full(cases, tokenizer):
    drawer = DocumentDrawer(tokenizer, {"report": ReportTask()}, Volume(), 60, cases, {})

    def prefix_tokens(ease):
        item = drawer.draw(random.Random(5), ease)
        start, stop = (tokenizer.convert_tokens_to_ids(f"<|vision_{edge}|>") for edge in ("start", "end"))
        assert item.shows.index(True) == item.prompt_ids.index(start) + 1
        assert item.prompt_ids.index(stop) - item.prompt_ids.index(start) - 1 == sum(item.shows)
        return sum(item.shows)

    assert prefix_tokens(1.0) == 16
    assert prefix_tokens(0.0) == 60


def test_mistakes_are_named(cases, tokenizer):
    with pytest.raises(DataError, match="no training case has a present finding"):
        DocumentDrawer(tokenizer, TASKS, Volume(), 20, [], {})
    bare = [dataclasses.replace(case, report=None) for case in cases]
    drawer = DocumentDrawer(tokenizer, {"report": ReportTask()}, Volume(), 20, bare, {})
    with pytest.raises(DataError, match="100 draws in a row asked nothing; tasks: report"):
        drawer.draw(random.Random(0), 0.0)
