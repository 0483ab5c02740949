"""Task `zoom-onto`: what is asked for, the square around it, and what is refused."""

import pytest
from evidcore_plugin_medvr.tools import Zoom
from evidcore_plugin_medvr.zoom_onto import ZoomOnto
from evidcore_testing import check_task

from evidcore.api import DataError, read, read_mask
from evidcore.builtin.views import Slices, Volume

VIEW = Slices(slices=1)


@pytest.fixture
def task(tmp_path):
    def make(**options):
        return ZoomOnto(VIEW, tmp_path, tool=Zoom(VIEW), **options)

    return make


def test_it_keeps_the_contract_of_a_task(task, cases):
    check_task(task(), VIEW, cases, garbage=["", "<answer></answer>"])


def test_every_structure_is_asked_for_and_its_square_holds_it(task, cases):
    onto = task(asked_per_case=0)
    for case in cases:
        prompts = onto.prompts(case, VIEW, 0)
        names = [name for name in case.masks if name not in case.present()]
        for name, prompt in zip(names, prompts, strict=True):
            assert f"Look closer at the {name}." in prompt.written()
            there = case.present()[0] if name == "lesion" else name
            assert onto.parse(prompt, onto.gold(prompt)[0]).value == there
            [turn] = onto.gold_turns(prompt)
            z0, _, y0, y1, x0, x1 = turn.crops[0].box_zyx
            mask = read_mask(case.masks[name], like=read(case.volumes[0]))[z0]
            assert mask[y0:y1, x0:x1].sum() >= 0.99 * mask.sum()  # coordinates are rounded
            assert abs((y1 - y0) - (x1 - x0)) <= 2


def test_the_seed_draws_what_is_asked_for(task, cases):
    drawn = [task().prompts(cases[0], VIEW, seed) for seed in range(30)]
    assert len({prompt.id for [prompt] in drawn}) > 2


def test_named_structures_alone_are_asked_for_findings_too_and_none_on_a_whole_volume(task, cases):
    for case in cases:
        [finding] = case.present()
        onto = task(structures=("liver", finding), asked_per_case=0)
        asked = {prompt.reference["answers"][0] for prompt in onto.prompts(case, VIEW, 0)}
        assert asked == {"liver", finding} & set(case.masks)
    with pytest.raises(DataError, match=r"zoom-onto: prompt '.*' shows no single slice"):
        task().prompts(cases[0], Volume(), 0)
