"""Isolated components give what they give in the run; what cannot be isolated is refused."""

import dataclasses
import json
import pickle
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
from evidcore_plugin_hub import isolation
from evidcore_plugin_hub.worker import pickled
from evidcore_testing.data import FINDINGS, volume_case

from evidcore.case import Action, Answer, Crop, Query, Rollout, Score, Turn, Unscored, VisualPart
from evidcore.case.read_only import ReadOnlyDict, ReadOnlyList, read_only
from evidcore.cli.show import recipe_schema
from evidcore.contracts import ImageQuestion
from evidcore.errors import ContractError, RecipeError
from evidcore.registry import factory, offers
from evidcore.registry.factory import Components

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

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
                answer, turns = task.parse(prompt, text), (turn,) * (number < 4)
                found.append(Rollout(prompt=prompt, group=group, text=text, answer=answer, turns=turns))
    return tuple(found)


def build(kind, table, services=None, **given):
    given = {"vocabulary": lambda: FINDINGS, **given}
    return factory.build(kind, table, given=given, where="test", services=services or {})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({one.name for one in offers("reward")} - NEED_WEIGHTS))
def test_an_isolated_reward_gives_the_verdicts_of_the_run(name, asked, tmp_path):
    table = {"use": name, **TABLES.get(name, {})}
    given = {"cases": lambda: [one.prompt.case for one in asked], "cache_folder": tmp_path}
    own, apart = (build("reward", {**table, "isolated": value}, **given) for value in (False, True))
    earlier = {"format": tuple(build("reward", {"use": "format"})(asked, {}))}
    judged = own(asked, earlier)
    assert list(apart(asked, earlier)) == list(judged)
    assert list(apart(asked[:5], {"format": earlier["format"][:5]})) == list(own(asked[:5], earlier))
    assert len({repr(one) for one in judged}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["findings-f1", "token-f1"])
def test_an_isolated_scorer_gives_the_numbers_of_the_run(name, asked):
    own, apart = (build("scorer", {"use": name, "isolated": value}) for value in (False, True))
    if name == "findings-f1":  # it serves a reward of the run too
        table = {"use": "report-consistency", "scorer": "judge"}
        both = [build("reward", table, {"judge": one})(asked, {}) for one in (own, apart)]
        assert both[0] == both[1]
    texts = [one.text for one in asked]
    pairs = texts, texts[3:] + texts[:3]
    assert apart(*pairs) == list(own(*pairs))
    assert apart(*pairs, [None] * len(texts)) == list(own(*pairs))
    assert apart.detects_negation is own.detects_negation
    apart.ready()


def test_verdicts_of_each_kind_come_back(planted, rollouts):
    expected = [None, Unscored(kind="failed", reason="ü"), Score(value=0.25)] * 2
    assert build("reward", {"use": "planted", "gives": "kinds", "isolated": True})(rollouts, {}) == expected


@pytest.mark.slow
def test_a_scorer_that_answers_too_often_is_named(planted):
    says = r"scorer 'planted-scorer' from planted-package 1\.2 gave 3 answers to 2"
    with pytest.raises(ContractError, match=says):
        build("scorer", {"use": "planted-scorer", "more": 1, "isolated": True})(["a", "b"], ["a", "bc"])


@pytest.mark.slow
def test_an_isolated_reader_reads(planted, asked):
    reader = build("reader", {"use": "planted-reader", "isolated": {"memory_gb": 1.0}})
    crop = Crop(volume=asked[0].prompt.case.volumes[0])
    questions = [ImageQuestion(crops=(crop, crop), text="What?"), ImageQuestion(crops=(), text="")]
    assert reader(questions) == ["What? 2", None]
    assert reader.deterministic


@pytest.mark.parametrize(("kind", "table", "says"), TABLE["refused"])
def test_what_cannot_be_isolated_is_a_mistake(kind, table, says):  # more in tests/golden/mistakes.toml
    wrong = factory.check(kind, table, "r")
    assert [str(one) for one in wrong if str(one).startswith(says)], [str(one) for one in wrong]
    with pytest.raises(RecipeError):
        factory.build(kind, table, given={}, where="r")


@pytest.mark.parametrize(
    ("value", "limits"),
    [(True, (60, 4)), ({}, (60, 4)), ({"time_limit_s": 5}, (5, 4)), ({"memory_gb": 1}, (60, 1))],
)  # fmt: skip
def test_what_can_be_isolated_has_both_limits_in_its_resolved_table(value, limits):
    table = {"use": "report-consistency", "scorer": {"use": "findings-f1"}, "isolated": value}
    assert factory.check("reward", table, "r") == []
    resolved = Components().table("reward", table)["isolated"]
    assert resolved == dict(zip(("time_limit_s", "memory_gb"), limits, strict=True))


def test_false_is_as_if_it_were_not_there():
    plain = {"use": "format", "weight": 0.5}
    assert Components().table("reward", {**plain, "isolated": False}) == Components().table("reward", plain)
    assert type(build("reward", {**plain, "isolated": False})).__name__ == "Format"


def test_the_schema_of_recipes_has_the_key():
    schema = json.loads(json.dumps(recipe_schema()))
    for kind, use in (("reward", "format"), ("scorer", "token-f1"), ("reader", "slice-reader")):
        checker = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": schema["$defs"]})
        assert checker.is_valid({"use": use, "isolated": {"time_limit_s": 5.0}})
        assert checker.is_valid({"use": use, "isolated": True})
        assert not checker.is_valid({"use": use, "isolated": {"time": 5.0}})
        assert not checker.is_valid({"use": use, "isolated": 3})


@pytest.mark.parametrize(
    "value",
    [ReadOnlyDict({"a": ReadOnlyList([1, (2,)])}), read_only({"boxes": [{"z": 1}]}),
     Answer(text="A", value={Path("a"): [np.float32(0.5), None, "half of one: \ud800"]}),
     Turn(text="zoom", actions=(Action(tool="zoom", arguments={"box": [1, 2]}),), reply=())],
    ids=repr,
)  # fmt: skip
def test_a_value_arrives_with_all_its_types(value):
    result = pickle.loads(pickled(value))
    assert (type(result), result, repr(result)) == (type(value), value, repr(value))
    if isinstance(value, ReadOnlyDict):
        assert [type(item) for item in result.values()] == [type(item) for item in value.values()]


def test_rollouts_of_a_prompt_share_it_and_cannot_be_written(rollouts):
    result = pickle.loads(pickled(rollouts))
    assert result == rollouts
    assert len({id(item.prompt) for item in result}) == len({id(item.prompt) for item in rollouts})
    assert result[0].prompt.case is result[1].prompt.case
    with pytest.raises(TypeError, match="cannot be written"):
        result[0].prompt.reference["letter"] = "B"
    with pytest.raises(dataclasses.FrozenInstanceError):
        result[0].text = "B"


@pytest.mark.parametrize(
    ("place", "what", "says"),
    [("FENCE", "network", "network not blocked for isolated components: `unshare -rn` is refused here"),
     ("landlock", "files", "files not blocked for isolated components: this system has no Landlock")],
)  # fmt: skip
def test_what_is_not_blocked_is_said_once(place, what, says, monkeypatch, caplog):
    function = getattr(isolation, f"{what}_blocked")
    function.cache_clear()
    monkeypatch.setattr(isolation, place, ("false",) if what == "network" else SimpleNamespace(version=int))
    assert [isolation.blocked()[f"{what}_blocked"] for _ in range(2)] == [False, False]
    assert [text for text in caplog.messages if what in text] == [says]
    function.cache_clear()
