"""Isolated components give what they give in the run; what cannot be isolated is refused."""

import dataclasses
import json

import jsonschema
import pytest
from evidcore_testing.data import FINDINGS, volume_case

from evidcore.case import Action, Crop, Query, Rollout, Turn, VisualPart
from evidcore.cli.show import recipe_schema
from evidcore.contracts import ImageQuestion
from evidcore.errors import ContractError, RecipeError
from evidcore.recipe.schema import RecipeContext
from evidcore.registry import factory, offers
from evidcore.registry.factory import Components
from evidcore.train.fit import Fit

TASKS = {"choice": "volume", "free-text": "volume", "report": "volume", "report-evidence": "slices",
         "reasoning-segmentation": "slices", "slice-findings": "slices"}  # fmt: skip
TABLES = {
    "report-consistency": {"scorer": {"use": "findings-f1"}},
    "volume-consistency": {"segmenter": {"use": "region-growing"}},
    "zoom-consensus": {"success": "format"},
}
NEED_WEIGHTS = {"cross-view"}  # of its reader


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Answers to every task that asks about four small chests, right ones and others; some looked first."""
    folder, found = tmp_path_factory.mktemp("chests"), []
    for name, use in TASKS.items():
        view = factory.build("view", {"use": use}, given={}, where="test")
        given = {"view": view, "recipe_folder": folder, "cache_folder": folder / "cache"}
        task = factory.build("task", {"use": name}, given=given, where="test")
        prompts = []
        for seed in range(4):
            case = volume_case(folder, seed)
            query = Query(id="q", text="What is abnormal?", masks=tuple(case.masks))
            prompts += task.prompts(dataclasses.replace(case, queries=(query,)), view, 1)
        assert prompts, name
        for prompt in prompts:
            others = ["", "<answer>B</answer>", task.gold(prompts[0])[0], task.gold(prompt)[0][:-3]]
            group = len({one.group for one in found})
            for number, text in enumerate([task.gold(prompt)[0], *others]):
                crop = Crop(volume=prompt.case.volumes[0], box_zyx=(3, 5, 0, 8, number, 8 + number))
                turn = Turn(
                    text="zoom", reply=(VisualPart(crop=crop),),
                    actions=(Action(tool="zoom" * (number % 2), arguments={"z": [1]}, error="no" * number),),
                )  # fmt: skip
                answer = task.parse(prompt, text)
                found.append(
                    Rollout(
                        prompt=prompt, group=group, text=text, answer=answer, turns=(turn,) * (number < 4)
                    )
                )
    return tuple(found)


def build(kind, table, where="test", **given):
    return factory.build(kind, table, given={"vocabulary": lambda: FINDINGS, **given}, where=where)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({one.name for one in offers("reward")} - NEED_WEIGHTS))
def test_an_isolated_reward_gives_the_verdicts_of_the_run(name, asked, tmp_path):
    table = {"use": name, **TABLES.get(name, {})}
    given = {"cases": lambda: [one.prompt.case for one in asked], "cache_folder": tmp_path}
    own, apart = (build("reward", {**table, "isolated": value}, **given) for value in (False, True))
    earlier = {"format": tuple(build("reward", {"use": "format"})(asked, {}))}
    judged = own(asked, earlier)
    assert [repr(one) for one in apart(asked, earlier)] == [repr(one) for one in judged]
    assert list(apart(asked[:5], {"format": earlier["format"][:5]})) == list(own(asked[:5], earlier))
    assert len({repr(one) for one in judged}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["findings-f1", "token-f1"])
def test_an_isolated_scorer_gives_the_numbers_of_the_run(name, asked):
    own, apart = (build("scorer", {"use": name, "isolated": value}) for value in (False, True))
    if name == "findings-f1":  # it serves a reward of the run too
        table = {"use": "report-consistency", "scorer": "judge"}
        both = [
            factory.build(
                "reward", table, given={"vocabulary": lambda: FINDINGS}, where="test", services={"judge": one}
            )(asked, {})
            for one in (own, apart)
        ]
        assert both[0] == both[1]
    texts = [one.text for one in asked]
    pairs = texts, texts[3:] + texts[:3]
    assert apart(*pairs) == list(own(*pairs))
    assert apart(*pairs, [None] * len(texts)) == list(own(*pairs))
    assert apart.detects_negation is own.detects_negation
    apart.ready()


@pytest.mark.slow
def test_a_scorer_that_answers_too_often_is_named(planted):
    with pytest.raises(
        ContractError, match=r"scorer 'planted-scorer' from planted-package 1\.2 gave 3 answers to 2"
    ):
        build("scorer", {"use": "planted-scorer", "more": 1, "isolated": True})(["a", "b"], ["a", "bc"])


@pytest.mark.slow
def test_an_isolated_reader_reads(planted, asked):
    reader = build("reader", {"use": "planted-reader", "isolated": {"memory_gb": 1.0}})
    crop = Crop(volume=asked[0].prompt.case.volumes[0])
    questions = [ImageQuestion(crops=(crop, crop), text="What?"), ImageQuestion(crops=(), text="")]
    assert reader(questions) == ["What? 2", None]
    assert reader.deterministic


BORROWING = {"use": "borrowing", "isolated": True, "scorer": {"use": "token-f1"}}


@pytest.mark.parametrize(
    ("kind", "table", "says"),
    [
        ("reward", {"use": "format", "isolated": 7},
         "r.isolated: must be true, false, or a table { time_limit_s = 60.0, memory_gb = 4.0 }, got 7."),
        ("reward", {"use": "format", "isolated": {"time_limit": 3.0}},
         "r.isolated.time_limit: unknown key. Did you mean 'time_limit_s'? Keys here: memory_gb, time"),
        ("scorer", {"use": "token-f1", "isolated": {"memory_gb": 0}},
         "r.isolated.memory_gb: must be greater than 0, got 0."),
        ("reader", {"use": "policy-reader", "isolated": {"time_limit_s": "long"}},
         "r.isolated.time_limit_s: must be a valid number, got 'long'."),
        ("reader", {"use": "policy-reader", "isolated": True},
         "r.isolated: not for reader 'policy-reader' from evidcore-plugin-emrl 0.1.0: it asks the core for "
         "'policy', which stays in the run's process. Leave `isolated` out."),
        ("reward", {**BORROWING, "scorer": "judge"},
         "r.scorer: service 'judge' stays in the run's process, and reward 'borrowing' from planted-package "
         "1.2 is isolated. Give a table of its own, { use = … }, or leave `isolated` out."),
        ("reward", {**BORROWING, "readers": [{"use": "planted-reader"}, "eyes"]},
         "r.readers[1]: service 'eyes' stays in the run's process"),
        ("reward", {**BORROWING, "readers": [{"use": "policy-reader"}]},
         "r.readers[0]: not for reader 'policy-reader' from evidcore-plugin-emrl 0.1.0: it asks"),
        ("reward", {**BORROWING, "scorer": {"use": "token-f1", "isolated": True}},
         "r.scorer.isolated: it is in the process of reward 'borrowing' from planted-package 1.2 already."),
        ("reward", {"use": "report-findings", "labeler": {"use": "negation-rules", "isolated": True}},
         "r.labeler.isolated: unknown key."),
    ],
)  # fmt: skip
def test_what_cannot_be_isolated_is_a_mistake(kind, table, says, planted):
    wrong = factory.check(kind, table, "r", {"judge": "scorer", "eyes": "reader"})
    assert [str(one) for one in wrong if str(one).startswith(says)], [str(one) for one in wrong]
    with pytest.raises(RecipeError):
        factory.build(kind, table, given={}, where="r")


@pytest.mark.parametrize("value", [True, {}, {"time_limit_s": 5}])
def test_what_can_be_isolated_is_none(value):
    table = {"use": "report-consistency", "scorer": {"use": "findings-f1"}, "isolated": value}
    assert factory.check("reward", table, "r") == []


def test_what_a_fit_stage_trains_cannot_be_isolated():
    around = RecipeContext(
        {"service": {"eyes": {"use": "slice-reader", "isolated": True}}}, {"eyes": "reader"}
    )
    found = list(Fit.problems({"component": "service.eyes"}, ("stage", 0), around))
    assert found == [
        (("stage", 0, "component"),
         "service.eyes is isolated, and a fit trains in the run's process. Leave `isolated` out, or name "
         "`pretrained` weights."),
    ]  # fmt: skip


def test_false_is_as_if_it_were_not_there():
    plain = {"use": "format", "weight": 0.5}
    assert Components().table("reward", {**plain, "isolated": False}) == Components().table("reward", plain)
    assert type(build("reward", {**plain, "isolated": False})).__name__ == "Format"


def test_a_resolved_table_has_both_limits():
    limits = {"time_limit_s": 60.0, "memory_gb": 4.0}
    assert Components().table("reward", {"use": "format", "isolated": True})["isolated"] == limits
    assert Components().table("scorer", {"use": "token-f1", "isolated": {"memory_gb": 1}})["isolated"] == {
        **limits, "memory_gb": 1.0,
    }  # fmt: skip


def test_the_schema_of_recipes_has_the_key():
    schema = json.loads(json.dumps(recipe_schema()))
    for kind, use in (("reward", "format"), ("scorer", "token-f1"), ("reader", "slice-reader")):
        checker = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": schema["$defs"]})
        assert checker.is_valid({"use": use, "isolated": {"time_limit_s": 5.0}})
        assert checker.is_valid({"use": use, "isolated": True})
        assert not checker.is_valid({"use": use, "isolated": {"time": 5.0}})
        assert not checker.is_valid({"use": use, "isolated": 3})
