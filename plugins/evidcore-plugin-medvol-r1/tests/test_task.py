import dataclasses
import json
import logging

import pytest
from evidcore_plugin_doctor.blind import BlindView
from evidcore_plugin_medvol_r1.target import measure
from evidcore_plugin_medvol_r1.task import read_descriptions
from evidcore_testing import check_evaluation, check_task, volume_case

from evidcore.api import Box, Case, Crop, DataError, Question, TextPart, View, VisualPart, VolumeRef
from evidcore.builtin.views import Slices, Volume
from evidcore.case import Evidence, Query
from evidcore.errors import PluginError
from evidcore.registry.factory import build

GARBAGE = (
    "slice 5", "<answer>[]</answer>", '<think>x</think><answer>{"slice": 5}</answer>', "[[1, 2, 3, 4]]",
)  # fmt: skip


@pytest.mark.parametrize(
    "options", [{}, {"think": False}, {"rules": True}, {"form": "array", "rules": True}, {"ask": "masks"}]
)
def test_it_keeps_the_contract_of_a_task(case, task_of, options):
    check_task(task_of(**options), Slices(slices=20), [case], garbage=GARBAGE)


def test_the_evaluation_keeps_its_contract_on_the_kit_s_cases(tmp_path):
    given = {"recipe_folder": tmp_path, "cache_folder": tmp_path / "cache"}
    table = {"use": "reasoning-segmentation", "ask": "masks"}
    task = build("task", table, given={"view": Slices(), **given}, where="test")
    cases = [volume_case(tmp_path, seed) for seed in range(4)]
    prompts = [prompt for case in cases for prompt in task.prompts(case, Slices(), 0)]
    check_evaluation(build("evaluation", {"use": "segmentation"}, given=given, where="test"), task, prompts)


def test_the_queries_of_a_case_are_asked_without_a_name_of_what_they_mean(case, task_of):
    gland, filters = task_of().prompts(case, Slices(slices=20), 0)
    assert gland.id == "c7:gland"
    words = "The largest gland.\nThink, then name one slice and box it there."
    assert gland.parts[-1] == TextPart(text=words)
    assert gland.parts[0] == TextPart(text="slice 0:")
    facts = ("masks", "finding", "kind")
    assert [gland.reference[name] for name in facts] == [["liver"], "liver", None]
    assert [filters.reference[name] for name in facts] == [["kidneys"], "kidneys", "both organs"]
    assert "liver" not in gland.words()


def test_a_query_may_have_several_masks_that_answer_together(case, task_of):
    masks = case.masks | {"stone 2": case.masks["stone"], "stone 1": case.masks["left kidney"]}
    query = Query(id="two", text="Both.", masks=("stone 1", "stone 2", "liver"))
    both = dataclasses.replace(case, masks=masks, queries=(query,))
    (prompt,) = task_of().prompts(both, Slices(slices=20), 0)
    assert prompt.reference["masks"] == ["stone 1", "stone 2", "liver"]
    assert prompt.reference["finding"] == "stone + liver"
    assert prompt.reference["target"]["areas"]["4"] == 100 + 40


def test_a_query_about_a_mask_that_the_case_lacks_is_named(case, task_of):
    wrong = dataclasses.replace(case, queries=(Query(id="q3", text="It.", masks=("liver", "spleen")),))
    said = "query 'q3' is answered by mask 'spleen', which the case lacks. It has: bladder, kidneys"
    with pytest.raises(DataError, match=said):
        task_of().prompts(wrong, Slices(slices=20), 0)


def test_gold_is_the_upper_median_slice_with_its_boxes_and_comes_back_in_voxels(asked, task_of):
    prompt, _ = asked("filters")
    task = task_of()
    gold, spans = task.gold(prompt)
    assert gold == (
        "<think>It is the kidneys, seen best on slice 6.</think><answer>"
        '{"slice": 6, "bbox_2d_list": [[100, 500, 300, 700], [700, 500, 900, 750]]}</answer>'
    )
    right, left = Box(z=6, y0=20, y1=28, x0=5, x1=15), Box(z=6, y0=20, y1=30, x0=35, x1=45)
    answer = task.parse(prompt, gold)
    assert (answer.evidence, answer.malformed, spans) == (Evidence(slice=6, boxes=(right, left)), None, ())


@pytest.mark.parametrize("think", [True, False])
def test_paper_and_release_answer_in_an_array_with_one_object(asked, task_of, think):
    options = {"think": think, "rules": True, "form": "array"}
    prompt, _ = asked("gland", **options)
    task = task_of(**options)
    gold, _ = task.gold(prompt)
    assert gold.endswith('<answer>[{"slice": 11, "bbox_2d_list": [[40, 125, 240, 400]]}]</answer>')
    example = '<answer>[{"slice": 12, "bbox_2d_list": [[100, 250, 300, 400]]}]</answer>'
    assert prompt.words().endswith(example)
    assert task.parse(prompt, gold).malformed is None
    bare = gold.replace("[{", "{").replace("}]", "}")
    answer = task.parse(prompt, bare)
    assert answer.evidence == task.parse(prompt, gold).evidence
    assert "expected an array with one object" in answer.malformed
    spelt = task_of(think=think, rules=True).prompts(prompt.case, Slices(slices=20), 0)[0]
    assert spelt.words().endswith(example.replace("[{", "{").replace("}]", "}"))


def test_gold_boxes_may_be_drawn_wider_but_not_beyond_the_slice(asked, task_of):
    prompt, _ = asked("gland", think=False, margin_voxels=3)
    wide, _ = task_of(think=False, margin_voxels=3).gold(prompt)
    assert wide == '<answer>{"slice": 11, "bbox_2d_list": [[0, 50, 300, 475]]}</answer>'
    tight, _ = asked("gland", think=False)
    assert prompt.reference == tight.reference
    gold, _ = task_of(think=False).gold(tight)  # an answer alone, where no thinking is asked for
    assert gold == '<answer>{"slice": 11, "bbox_2d_list": [[40, 125, 240, 400]]}</answer>'
    assert tight.words().endswith("The largest gland.\nName one slice and box it there.")


def test_the_gold_slice_is_one_that_is_shown(asked):
    prompt, _ = asked("gland", slices=4)
    assert prompt.reference["shown"] == [2, 7, 12, 17]
    assert prompt.reference["target"]["slice"] == 12  # of 7 and 12, which show it
    assert set(prompt.reference["target"]["boxes"]) == {"7", "12"}


def test_every_box_of_every_slice_comes_back_exactly(case, task_of, tmp_path):
    """Whole numbers of 0..1000 hit every voxel edge of a slice of up to 1000 voxels."""
    task, view = task_of(), Slices(slices=20)
    parts = {part.crop.box_zyx[0]: part for part in view.render(case) if isinstance(part, VisualPart)}
    for name in ("liver", "left kidney", "stone"):
        for z, boxes in measure(case, [name], tmp_path, task._rule).boxes.items():
            for box in boxes:
                assert view.to_source(parts[z], task._shown_box(parts[z], box)) == box


def test_boxes_that_are_none_are_left_out_and_named(asked):
    _, answered = asked()
    answer = answered(5, [100, 500, 300, 700], [300, 500, 300, 700]).answer
    assert answer.evidence.boxes == (Box(z=5, y0=20, y1=28, x0=5, x1=15),)
    assert answer.malformed.startswith("the box [300, 500, 300, 700] must have 0 <= x0 < x1")
    assert answered(5).answer.evidence == Evidence(slice=5)
    assert answered(30, [1, 2, 3, 4]).answer.evidence is None


def test_on_another_patients_pixels_slices_and_boxes_are_those_of_the_own_case(asked, task_of):
    """The control that shows other pixels must judge against the question's own case."""
    prompt, _ = asked()
    foreign = VolumeRef(path="/elsewhere/other.nii")
    crops = [Crop(volume=foreign, box_zyx=(z, z + 1, 0, 9, 0, 9)) for z in range(100, 120)]
    gold, _ = task_of().gold(prompt)
    task = task_of()
    assert task.parse(prompt.showing(crops), gold).evidence == task.parse(prompt, gold).evidence
    assert task.gold(prompt.showing(crops)) == task.gold(prompt)


def test_a_mask_each_is_asked_for_by_its_name_or_by_a_description(case, task_of, tmp_path):
    table = {"liver": ["the largest gland", "the organ that makes bile"], "left kidney": ["a filter"]}
    (tmp_path / "terms.json").write_text(json.dumps(table))
    task = task_of(ask="masks", names=("liver", "left_kidney", "stone"), descriptions="terms.json")
    view = Slices(slices=20)
    said = {prompt.reference["query"] for seed in range(12) for prompt in task.prompts(case, view, seed)}
    assert said == {"the largest gland", "the organ that makes bile", "the stone"}  # no mask "left_kidney"
    assert [prompt.id for prompt in task.prompts(case, view, 1)] == ["c7:liver", "c7:stone"]
    every = [prompt.reference["finding"] for prompt in task_of(ask="masks").prompts(case, view, 0)]
    assert every == ["liver", "kidneys", "left kidney", "stone"]  # the bladder's is empty


def test_names_of_masks_are_matched_in_capitals_too(case, task_of, tmp_path):
    masks = {"Kidneys": case.masks["kidneys"], "LIVER": case.masks["liver"]}
    capital = dataclasses.replace(case, masks=masks, queries=())
    (tmp_path / "terms.json").write_text(json.dumps({"kidneys": ["filters"], "Liver": ["a gland"]}))
    task = task_of(ask="masks", names=("liver", "KIDNEYS"), descriptions="terms.json")
    liver, kidneys = task.prompts(capital, Slices(slices=20), 0)
    assert [item.reference["query"] for item in (liver, kidneys)] == ["a gland", "filters"]
    assert [item.reference["masks"] for item in (liver, kidneys)] == [["LIVER"], ["Kidneys"]]
    assert len(kidneys.reference["target"]["boxes"]["6"]) == 2
    (tmp_path / "terms.json").write_text(json.dumps({"Liver": ["a"], "spleen": ["s"], "liver": ["b"]}))
    assert read_descriptions(tmp_path / "terms.json") == {"liver": ("a", "b"), "spleen": ("s",)}


def test_a_target_that_no_shown_slice_shows_is_not_asked_for_and_the_log_says_so_once(case, task_of, caplog):
    masks = case.masks | {"stone 2": case.masks["stone"]}
    case = dataclasses.replace(case, masks=masks)
    task, view = task_of(ask="masks", names=("stone", "stone 2")), Slices(slices=4)
    with caplog.at_level(logging.WARNING):
        assert [*task.prompts(case, view, 0), *task.prompts(case, view, 1)] == []
    assert [record.getMessage() for record in caplog.records] == [
        "reasoning-segmentation: case c7, query stone: none of the 4 slices shown shows the target, so it "
        "is not asked, nor is any other of which this holds. Show more slices."
    ]


def test_what_someone_puts_is_asked_whatever_masks_there_are(case, task_of):
    question = Question(id="asked", text="Where is the spleen?", options=("a", "b"), answer=0)
    scan = Case(id="scan", patient=None, volumes=case.volumes, questions=(question,))
    task = task_of()
    (prompt,) = task.ask(scan, Slices(slices=20))
    said = '<think>There.</think><answer>{"slice": 5, "bbox_2d_list": [[0, 0, 20, 25]]}</answer>'
    answer = task.parse(prompt, said)
    assert answer.evidence == Evidence(slice=5, boxes=(Box(z=5, y0=0, y1=1, x0=0, x1=1),))
    assert prompt.reference["target"] is None


def test_a_view_that_shows_nothing_is_asked_nothing_and_a_case_of_several_volumes_is_refused(case, task_of):
    assert task_of().prompts(case, BlindView(), 0) == []
    twice = dataclasses.replace(case, volumes=case.volumes * 2)
    with pytest.raises(DataError, match="case 'c7': has 2 volumes, and a slice is named by its index alone"):
        task_of().prompts(twice, Slices(slices=4), 0)


class OneWay(Slices):
    from_source = View.from_source


def test_a_view_that_knows_no_way_back_is_named(case, task_of):
    task = task_of(view=OneWay(slices=20))
    (prompt, _) = task.prompts(case, OneWay(slices=20), 0)
    with pytest.raises(PluginError, match="view OneWay cannot say where voxels lie"):
        task.gold(prompt)
    assert Volume().tags_slices is False  # which `needs_slice_tags` refuses in a recipe


@pytest.mark.parametrize("text", ["It is {organ}.", "{", "", "<b>{target}</b>"])
def test_a_think_text_of_other_fields_is_refused(task_of, text):
    with pytest.raises(ValueError, match="think_text") as caught:
        task_of(think_text=text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 200_000, r"terms\.json: cannot be read as JSON \(maximum recursion depth"),
        ("{", r"terms\.json: cannot be read as JSON \(Expecting property name"),
        ("[1]", r"terms\.json: must be an object of mask names, got list"),
        ('{"liver": "bile"}', r"terms\.json: 'liver' must have a list of texts, got \"bile\""),
        ('{"liver": []}', r"terms\.json: 'liver' must have a list of texts, got \[\]"),
    ],
)
def test_descriptions_that_cannot_be_used_are_named(case, task_of, tmp_path, content, said):
    (tmp_path / "terms.json").write_text(content)
    with pytest.raises(DataError, match=said):
        task_of(ask="masks", descriptions="terms.json").prompts(case, Slices(slices=20), 0)
