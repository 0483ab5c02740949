"""Rollout `verify`: the named slice is shown once more, and the last turn is the answer."""

import pytest
from disc_cases import disc_case
from evidcore_plugin_emrl.report_evidence import ReportEvidence
from evidcore_plugin_emrl.verify import INSTRUCTION, Verify
from evidcore_testing import TinySampler, check_rollout
from evidcore_testing.fixtures import language_folder

from evidcore.api import TextPart
from evidcore.builtin.views import Slices

language = language_folder
DRAFT = '<report>There is a cyst.</report><evidence>{"slice": 1}</evidence>'
FINAL = '<report>There is a stone.</report><evidence>{"slice": 3}</evidence>'


@pytest.fixture
def prompts(tmp_path):
    task = ReportEvidence(tmp_path / "cache")
    cases = [disc_case(tmp_path, number, ["cyst"]) for number in range(2)]
    return [prompt for case in cases for prompt in task.prompts(case, Slices(slices=6), 0)]


def scripted(language, *turns, budget_tokens=400):
    return TinySampler(language, turns=turns, stop_texts=Verify.stop_texts, budget_tokens=budget_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("turns", [(DRAFT, FINAL), ("<evidence>null</evidence>",), ()])
def test_it_keeps_the_contract(language, prompts, trained, turns):
    check_rollout(Verify(trained=trained), scripted(language, *turns), prompts, most_tokens=400)


@pytest.mark.parametrize(("trained", "own"), [(True, DRAFT + FINAL), (False, DRAFT)])
def test_the_named_slice_is_shown_and_the_second_answer_counts_and_is_trained_or_not(
    language, prompts, trained, own
):
    sampler = scripted(language, DRAFT, FINAL)
    [episode] = Verify(trained=trained)(sampler, prompts[:1], 1)
    assert sampler.text(episode) == FINAL
    trained_ids = [token for token, mask in zip(episode.ids, episode.loss_mask, strict=True) if mask]
    assert sampler.decode(trained_ids) == own
    [turn] = sampler.past_turns(episode)
    assert turn.text == DRAFT
    assert [(item.tool, dict(item.arguments)) for item in turn.actions] == [("verify", {"slices": [1]})]
    assert [crop.box_zyx[0] for crop in turn.crops] == [1]
    assert [part.text for part in turn.reply if isinstance(part, TextPart)] == ["slice 1:", INSTRUCTION]
    assert episode.finished


def test_slices_of_several_findings_are_shown_once_each_behind_their_tags(language, prompts):
    cited = '<report>x</report><evidence>{"cyst": 4, "stone": 0, "mass": 4}</evidence>'
    [episode] = Verify()(scripted(language, cited, FINAL), prompts[:1], 1)
    [reply] = episode.replies
    texts = [part.text for part in reply.parts if isinstance(part, TextPart)]
    assert texts == ["slice 4:", "slice 0:", INSTRUCTION]


@pytest.mark.slow
@pytest.mark.parametrize(
    "evidence",
    ["null", '{"slice": 9}', '{"slice": -1}', '{"slice": true}', '{"slice": "1"}', "[1]", "", "[" * 3000],
)
def test_an_answer_without_a_slice_that_was_shown_is_asked_once(language, prompts, evidence):
    answer = f"<report>x</report><evidence>{evidence}</evidence> And on."
    sampler = scripted(language, answer, budget_tokens=9000)
    [episode] = Verify(trained=False)(sampler, prompts[:1], 1)
    assert episode.replies == ()
    assert sampler.text(episode) == answer
    assert all(episode.loss_mask)
    assert episode.finished


def test_an_answer_that_runs_out_of_tokens_is_finished_as_it_is(language, prompts):
    sampler = scripted(language, DRAFT, FINAL, budget_tokens=5)
    [episode] = Verify()(sampler, prompts[:1], 1)
    assert (len(episode.ids), episode.replies, episode.finished) == (5, (), True)
