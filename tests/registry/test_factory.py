import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le

from evidcore.api import InlineOptions, Reward, Scorer
from evidcore.errors import ContractError, PluginError, RecipeError
from evidcore.registry.factory import Components, arguments, build, flat_forms, name_of, offer_of, options


class Silent(Reward):
    def __call__(self, rollouts, earlier):
        return [None for _ in rollouts]


class Overlap(Silent):
    def __init__(
        self,
        policy: Any = None,
        *,
        labels: tuple[str, ...] = ("lesion",),
        empty: Annotated[float, Ge(0), Le(1)] = 0.0,
        mode: Literal["dice", "iou"] = "dice",
        atlas: Path | None = None,
        scorer: Scorer | None = None,
    ):
        self.seen = {"policy": policy, "labels": labels, "empty": empty, "mode": mode, "atlas": atlas}
        self.scorer = scorer


class Same(Scorer):
    def __init__(self, *, power: float = 2.0):
        self.power = power

    def __call__(self, candidates, references):
        return [1.0 for _ in candidates]


def needy(weights: Any, *, depth: int) -> Reward:
    return Overlap()


class NotAReward: ...


resolved = Components().table  # with its defaults


def make(table, **more):
    return build("reward", table, given={"policy": "P"}, where="stage.grpo.reward[0]", **more)


def test_left_of_the_star_the_core_gives_and_right_of_it_the_recipe_gives():
    built = make(
        {"use": "overlap-here", "labels": ["node"], "empty": 1, "atlas": "/a", "weight": 2.0, "gate": ""},
    )  # fmt: skip
    assert built.seen == {
        "policy": "P", "labels": ("node",), "empty": 1.0, "mode": "dice", "atlas": Path("/a")
    }  # fmt: skip
    assert type(built.seen["empty"]) is float
    assert (offer_of(built).package, offer_of(built).version) == ("evid-here", "3.2")


@pytest.mark.parametrize(
    ("table", "error", "says"),
    [({"use": "needy-here", "depth": 3}, PluginError,
      " asks the core for 'weights'; a reward is given policy."),
     ({"use": "wrong-here"}, ContractError, ": must give a Reward, got NotAReward")],
)  # fmt: skip
def test_what_asks_for_more_than_the_core_gives_or_is_of_another_kind_is_the_plugins_mistake(
    table, error, says
):
    with pytest.raises(error, match=f"'{table['use']}' from evid-here 3.2{says}"):
        make(table)


def test_an_option_that_is_a_component_is_built_inline_or_taken_from_the_services():
    assert make({"use": "overlap-here", "scorer": {"use": "same-here", "power": 3}}).scorer.power == 3.0
    service = Same(power=5.0)
    assert make({"use": "overlap-here", "scorer": "judge"}, services={"judge": service}).scorer is service


def test_only_the_options_need_types_that_exist_while_running():
    def typed(model: "OnlyForTheTypeChecker", *, depth: int = 3) -> None: ...  # noqa: F821

    assert options(typed)["depth"].type is int


def test_the_resolved_table_holds_every_default_and_builds_the_same():
    full = resolved("reward", {"use": "overlap-here", "weight": 2.0, "scorer": {"use": "same-here"}})
    assert full == {
        "use": "overlap-here", "weight": 2.0, "labels": ["lesion"], "empty": 0.0, "mode": "dice",
        "scorer": {"use": "same-here", "power": 2.0},
    }  # fmt: skip
    assert make(full).seen == make({"use": "overlap-here"}).seen


class Chained(Silent):
    """Has a labeler of its own, given to its scorers, of which it has as many as the recipe names."""

    def __init__(
        self,
        *,
        first: Scorer = {"use": "same-here", "power": 7.0},  # noqa: B006
        others: tuple[Scorer, ...] = (),
        more: tuple[Scorer, ...] = ({"use": "after-here"},),
    ):
        self.first, self.others, self.more = first, others, more


class After(Same):
    def __init__(self, first: Any, policy: Any, *, power: float = 2.0):
        super().__init__(power=power)
        self.first, self.policy = first, policy


def test_a_list_of_components_is_built_in_order_inline_or_from_the_services():
    service = Same(power=5.0)
    tables = [{"use": "same-here", "power": 3}, "judge"]
    built = make({"use": "chained-here", "others": tables}, services={"judge": service})
    assert [scorer.power for scorer in built.others] == [3.0, 5.0]
    assert built.others[1] is service
    assert make({"use": "chained-here"}).others == ()


def test_a_default_that_is_a_table_is_built_and_given_to_later_components_by_name():
    built = make({"use": "chained-here"})
    (after,) = built.more
    assert built.first.power == 7.0
    assert after.first is built.first
    assert after.policy == "P"  # what the core gives is given too


def test_a_component_knows_the_name_that_its_table_gave():
    assert name_of(make({"use": "overlap-here", "name": "mine"})) == "mine"
    assert name_of(make({"use": "overlap-here"})) == ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    most: Annotated[int, Ge(1)]
    names: tuple[str, ...] = ("a",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds(Limits):
    most: Annotated[int, Ge(1)] = 3
    share: float = 0.5
    judge: Scorer | None = None


class Sharing(Silent):
    def __init__(self, *, depth: int = 1, limits: Annotated[Limits, InlineOptions]):
        self.depth, self.limits = depth, limits


class Other(Sharing):
    def __init__(self, *, bounds: Annotated[Bounds, InlineOptions] = Bounds(share=0.25), depth: int = 1):
        super().__init__(depth=depth, limits=bounds)


def test_fields_of_a_flat_dataclass_are_keys_of_the_table():
    built = make({"use": "sharing-here", "most": 2, "names": ["x", "y"]})
    assert (built.depth, built.limits) == (1, Limits(most=2, names=("x", "y")))
    assert list(options(Sharing)) == ["depth", "most", "names"]
    assert resolved("reward", {"use": "sharing-here", "most": 2}) == {
        "use": "sharing-here", "depth": 1, "most": 2, "names": ["a"]
    }  # fmt: skip


def test_a_default_of_the_parameter_replaces_those_of_the_fields():
    assert make({"use": "other-here"}).limits == Bounds(share=0.25)
    assert make({"use": "other-here", "most": 9}).limits == Bounds(most=9, share=0.25)
    assert resolved("reward", {"use": "other-here"})["share"] == 0.25


def test_a_field_may_be_a_component():
    assert make({"use": "other-here", "judge": {"use": "same-here", "power": 7}}).limits.judge.power == 7


def test_a_fit_has_flat_options_too():
    def fit(train: Any, *, seed: int = 1, limits: Annotated[Limits, InlineOptions]) -> None: ...

    assert arguments(fit, {"most": 4}, "fit") == {"limits": Limits(most=4)}
    assert arguments(fit, {"most": 4, "seed": 2}, "fit") == {"limits": Limits(most=4), "seed": 2}
    with pytest.raises(RecipeError, match=r"^fit.most: missing, and it has no default.$"):
        arguments(fit, {}, "fit")


def test_a_dataclass_that_is_not_marked_is_a_table_of_its_own():
    def nested(*, limits: Limits) -> None: ...

    assert arguments(nested, {"limits": {"most": 2}}, "n") == {"limits": Limits(most=2)}
    assert flat_forms(nested) == []


def test_the_forms_of_shared_options_come_after_those_that_they_extend():
    assert flat_forms(Other) == [Limits, Bounds]


@pytest.fixture(autouse=True)
def installed(offered):
    """Offer this module's components as an installed package would."""
    rewards = {
        "overlap-here": Overlap, "needy-here": needy, "wrong-here": NotAReward, "chained-here": Chained,
        "sharing-here": Sharing, "other-here": Other,
    }  # fmt: skip
    scorers = {"same-here": Same, "after-here": After}
    lines = [
        f"[evidcore.{kind}]\n"
        + "".join(f"{name} = evid_here:{item.__name__}\n" for name, item in those.items())
        for kind, those in (("reward", rewards), ("scorer", scorers))
    ]
    objects = {item.__name__: item for item in (rewards | scorers).values()}
    offered("evid-here", "".join(lines), version="3.2", **objects)
