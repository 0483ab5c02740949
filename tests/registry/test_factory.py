import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le

from evidcore.contracts import Reward, Scorer
from evidcore.errors import ContractError, PluginError, RecipeError
from evidcore.registry.factory import (
    Components,
    Flat,
    arguments,
    build,
    check,
    check_options,
    flat_forms,
    name_of,
    offer_of,
    options,
    resolved_options,
)


class Overlap(Reward):
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

    def __call__(self, rollouts: Sequence[Any], earlier: Mapping[str, Any]) -> Sequence[None]:
        return [None for _ in rollouts]


class Same(Scorer):
    def __init__(self, *, power: float = 2.0):
        self.power = power

    def __call__(self, candidates, references):
        return [1.0 for _ in candidates]


def needy(weights: Any, *, depth: int) -> Reward:
    return Overlap()


class NotAReward: ...


class Slotted(Overlap):
    pass


def resolved(kind, table, services=None):
    return Components(services).table(kind, table)


@pytest.fixture(autouse=True)
def installed(offered):
    """Offer this module's components as an installed package would."""
    offered(
        "evid-here",
        "[evidcore.reward]\noverlap-here = evid_here:Overlap\nneedy-here = evid_here:needy\n"
        "wrong-here = evid_here:NotAReward\n[evidcore.scorer]\nsame-here = evid_here:Same\n",
        version="3.2",
        **{item.__name__: item for item in (Overlap, Same, needy, NotAReward)},
    )


def make(table, **more):
    return build("reward", table, given={"policy": "P"}, where="stage.grpo.reward[0]", **more)


def test_left_of_the_star_the_core_gives_and_right_of_it_the_recipe_gives():
    built = make({
        "use": "overlap-here",
        "labels": ["node"],
        "empty": 1,
        "atlas": "/a",
        "weight": 2.0,
        "gate": "",
    })
    assert built.seen == {
        "policy": "P", "labels": ("node",), "empty": 1.0, "mode": "dice", "atlas": Path("/a")
    }  # fmt: skip
    assert type(built.seen["empty"]) is float
    assert (offer_of(built).package, offer_of(built).version) == ("evid-here", "3.2")


def test_every_wrong_key_is_reported_at_once():
    table = {"use": "overlap-here", "lables": [], "empty": 1.5, "mode": "dise", "labels": ["a", 3]}
    with pytest.raises(RecipeError) as caught:
        make(table)
    assert str(caught.value).splitlines() == [
        "stage.grpo.reward[0].empty: must be less than or equal to 1, got 1.5.",
        "stage.grpo.reward[0].labels[1]: must be a valid string, got 3.",
        "stage.grpo.reward[0].lables: unknown key. Did you mean 'labels'? "
        "Keys here: atlas, empty, labels, mode, scorer.",
        "stage.grpo.reward[0].mode: must be 'dice' or 'iou', got 'dise'.",
    ]


@pytest.mark.parametrize("value", ["0.5", True, float("nan"), float("inf"), None])
def test_nothing_is_coerced(value):
    with pytest.raises(RecipeError, match=rf"reward\[0\].empty: .*got {value!r}"):
        make({"use": "overlap-here", "empty": value})


def test_a_missing_option_is_named():
    with pytest.raises(RecipeError, match=r"^stage.grpo.reward\[0\].depth: missing, and it has no default.$"):
        make({"use": "needy-here"})


def test_a_missing_use_is_named():
    assert [str(item) for item in check("reward", {}, "r")] == ["r.use: missing; it names the component."]
    assert [str(item) for item in check("reward", {"use": 3}, "r")] == ["r.use: must be a name, got 3."]


def test_what_the_core_does_not_give_is_the_plugins_mistake():
    with pytest.raises(
        PluginError,
        match=r"'needy-here' from evid-here 3.2 asks the core for 'weights'; a reward is given policy.",
    ):
        make({"use": "needy-here", "depth": 3})


def test_what_is_built_must_be_of_its_kind():
    with pytest.raises(
        ContractError, match=r"'wrong-here' from evid-here 3.2: must give a Reward, got NotAReward"
    ):
        make({"use": "wrong-here"})


def test_an_option_that_is_a_component_is_built_inline_or_taken_from_the_services():
    assert make({"use": "overlap-here", "scorer": {"use": "same-here", "power": 3}}).scorer.power == 3.0
    service = Same(power=5.0)
    assert make({"use": "overlap-here", "scorer": "judge"}, services={"judge": service}).scorer is service


def test_mistakes_inside_an_inline_component_are_reported_with_their_path():
    with pytest.raises(RecipeError, match=r"reward\[0\].scorer.pover: unknown key. Did you mean 'power'\?"):
        make({"use": "overlap-here", "scorer": {"use": "same-here", "pover": 3}})
    with pytest.raises(
        RecipeError, match=r"reward\[0\].scorer: no service is called 'jugde'. Did you mean 'judge'\?"
    ):
        make({"use": "overlap-here", "scorer": "jugde"}, services={"judge": Same()})
    with pytest.raises(RecipeError, match=r"reward\[0\].scorer: must be a scorer: a table .* got 3"):
        make({"use": "overlap-here", "scorer": 3})


def test_a_service_of_another_kind_is_refused():
    wrong = check("reward", {"use": "overlap-here", "scorer": "eye"}, "r", {"eye": "reader"})
    assert [str(item) for item in wrong] == ["r.scorer: must be a scorer, but service 'eye' is a reader."]


def test_an_option_may_not_take_a_key_of_the_core():
    def greedy(*, weight: float = 1.0) -> None: ...

    with pytest.raises(
        PluginError, match=r"greedy has an option 'weight'; that key of a reward table is the core's"
    ):
        options(greedy, "reward")


def test_an_option_without_a_type_is_refused():
    def untyped(*, depth=3): ...

    with pytest.raises(PluginError, match=r"untyped has no type for its option 'depth'"):
        options(untyped)


def test_only_the_options_need_types_that_exist_while_running():
    def typed(model: "OnlyForTheTypeChecker", *, depth: int = 3) -> None: ...  # noqa: F821

    assert options(typed)["depth"].type is int

    def odd(*, depth: "Nowhere" = 3) -> None: ...  # noqa: F821

    with pytest.raises(PluginError, match=r"odd: its types cannot be read \(NameError: name 'Nowhere'"):
        options(odd)


def test_the_resolved_table_holds_every_default_and_builds_the_same():
    full = resolved("reward", {"use": "overlap-here", "weight": 2.0, "scorer": {"use": "same-here"}})
    assert full == {
        "use": "overlap-here", "weight": 2.0, "labels": ["lesion"], "empty": 0.0, "mode": "dice",
        "scorer": {"use": "same-here", "power": 2.0},
    }  # fmt: skip
    assert make(full).seen == make({"use": "overlap-here"}).seen


def test_the_options_of_a_fit_are_checked_like_those_of_a_constructor():
    def fit(train: Any, *, steps: Annotated[int, Ge(1)] = 10) -> None: ...

    known = options(fit)
    assert [str(item) for item in check_options(known, {"steps": 0}, "stage.fit")] == [
        "stage.fit.steps: must be greater than or equal to 1, got 0."
    ]
    assert resolved_options(known, {}) == {"steps": 10}


class Chained(Reward):
    """Has a labeler of its own, given to its scorers, of which it has as many as the recipe names."""

    def __init__(
        self,
        *,
        first: Scorer = {"use": "same-here", "power": 7.0},  # noqa: B006
        others: tuple[Scorer, ...] = (),
        more: tuple[Scorer, ...] = ({"use": "after-here"},),
    ):
        self.first, self.others, self.more = first, others, more

    def __call__(self, rollouts, earlier):
        return [None for _ in rollouts]


class After(Same):
    def __init__(self, first: Any, policy: Any, *, power: float = 2.0):
        super().__init__(power=power)
        self.first, self.policy = first, policy


@pytest.fixture
def chained(offered):
    offered(
        "evid-chained",
        "[evidcore.reward]\nchained-here = evid_chained:Chained\n"
        "[evidcore.scorer]\nafter-here = evid_chained:After\n",
        Chained=Chained, After=After,
    )  # fmt: skip


@pytest.mark.usefixtures("chained")
def test_a_list_of_components_is_built_in_order_inline_or_from_the_services():
    service = Same(power=5.0)
    tables = [{"use": "same-here", "power": 3}, "judge"]
    built = make({"use": "chained-here", "others": tables}, services={"judge": service})
    assert [scorer.power for scorer in built.others] == [3.0, 5.0]
    assert built.others[1] is service
    assert make({"use": "chained-here"}).others == ()


@pytest.mark.usefixtures("chained")
def test_a_default_that_is_a_table_is_built_and_given_to_later_components_by_name():
    built = make({"use": "chained-here"})
    (after,) = built.more
    assert built.first.power == 7.0
    assert after.first is built.first
    assert after.policy == "P"  # what the core gives is given too


@pytest.mark.usefixtures("chained")
def test_mistakes_in_a_list_of_components_are_reported_with_their_place():
    table = {"use": "chained-here", "others": [{"use": "same-here"}, {"use": "same-here", "pover": 3}]}
    with pytest.raises(
        RecipeError, match=r"reward\[0\].others\[1\].pover: unknown key. Did you mean 'power'"
    ):
        make(table)
    with pytest.raises(RecipeError, match=r"reward\[0\].others: must be a list of scorer tables such as"):
        make({"use": "chained-here", "others": {"use": "same-here"}})
    with pytest.raises(RecipeError, match=r"reward\[0\].others\[0\]: no service is called 'judge'"):
        make({"use": "chained-here", "others": ["judge"]})


@pytest.mark.usefixtures("chained")
def test_the_resolved_table_holds_the_defaults_of_listed_components():
    full = resolved(
        "reward",
        {"use": "chained-here", "others": [{"use": "same-here"}, "judge"]},
        {"judge": "scorer"},
    )
    assert full["others"] == [{"use": "same-here", "power": 2.0}, "judge"]
    assert full["more"] == [{"use": "after-here", "power": 2.0}]


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


class Sharing(Reward):
    def __init__(self, *, depth: int = 1, limits: Annotated[Limits, Flat]):
        self.depth, self.limits = depth, limits

    def __call__(self, rollouts, earlier):
        return [None for _ in rollouts]


class Other(Sharing):
    def __init__(self, *, bounds: Annotated[Bounds, Flat] = Bounds(share=0.25), depth: int = 1):
        super().__init__(depth=depth, limits=bounds)


@pytest.fixture
def sharing(offered):
    offered(
        "evid-sharing",
        "[evidcore.reward]\nsharing-here = evid_sharing:Sharing\nother-here = evid_sharing:Other\n",
        Sharing=Sharing, Other=Other,
    )  # fmt: skip


@pytest.mark.usefixtures("sharing")
def test_fields_of_a_flat_dataclass_are_keys_of_the_table():
    built = make({"use": "sharing-here", "most": 2, "names": ["x", "y"]})
    assert (built.depth, built.limits) == (1, Limits(most=2, names=("x", "y")))
    assert list(options(Sharing)) == ["depth", "most", "names"]
    assert resolved("reward", {"use": "sharing-here", "most": 2}) == {
        "use": "sharing-here", "depth": 1, "most": 2, "names": ["a"]
    }  # fmt: skip


@pytest.mark.usefixtures("sharing")
def test_mistakes_in_flat_keys_are_told_like_those_of_other_keys():
    with pytest.raises(RecipeError) as caught:
        make({"use": "sharing-here", "limits": {}, "names": ["a", 3], "dept": 2})
    assert str(caught.value).splitlines() == [
        "stage.grpo.reward[0].dept: unknown key. Did you mean 'depth'? Keys here: depth, most, names.",
        "stage.grpo.reward[0].limits: unknown key. Keys here: depth, most, names.",
        "stage.grpo.reward[0].most: missing, and it has no default.",
        "stage.grpo.reward[0].names[1]: must be a valid string, got 3.",
    ]
    with pytest.raises(RecipeError, match=r"reward\[0\].most: must be greater than or equal to 1, got 0."):
        make({"use": "sharing-here", "most": 0})


@pytest.mark.usefixtures("sharing")
def test_a_default_of_the_parameter_replaces_those_of_the_fields():
    assert make({"use": "other-here"}).limits == Bounds(share=0.25)
    assert make({"use": "other-here", "most": 9}).limits == Bounds(most=9, share=0.25)
    assert resolved("reward", {"use": "other-here"})["share"] == 0.25


@pytest.mark.usefixtures("sharing")
def test_a_field_may_be_a_component():
    assert make({"use": "other-here", "judge": {"use": "same-here", "power": 7}}).limits.judge.power == 7
    with pytest.raises(RecipeError, match=r"reward\[0\].judge.pover: unknown key. Did you mean 'power'"):
        make({"use": "other-here", "judge": {"use": "same-here", "pover": 7}})


def test_a_fit_has_flat_options_too():
    def fit(train: Any, *, seed: int = 1, limits: Annotated[Limits, Flat]) -> None: ...

    assert arguments(fit, {"most": 4}, "fit") == {"limits": Limits(most=4)}
    assert arguments(fit, {"most": 4, "seed": 2}, "fit") == {"limits": Limits(most=4), "seed": 2}
    with pytest.raises(RecipeError, match=r"^fit.most: missing, and it has no default.$"):
        arguments(fit, {}, "fit")


def test_a_flat_option_may_stand_once_and_be_no_key_of_the_core():
    def twice(*, most: int, limits: Annotated[Limits, Flat]) -> None: ...

    with pytest.raises(PluginError, match=r"twice has the option 'most' twice"):
        options(twice)

    @dataclasses.dataclass(frozen=True)
    class Greedy:
        weight: float = 1.0

    def greedy(*, limits: Annotated[Greedy, Flat]) -> None: ...

    with pytest.raises(PluginError, match=r"greedy has an option 'weight'; that key of a reward table"):
        options(greedy, "reward")


def test_what_is_flat_must_be_a_frozen_dataclass():
    def loose(*, limits: Annotated[dict[str, int], Flat]) -> None: ...

    with pytest.raises(PluginError, match=r"'limits' is Flat, so it must be a frozen dataclass, got dict"):
        options(loose)


def test_a_dataclass_that_is_not_marked_is_a_table_of_its_own():
    def nested(*, limits: Limits) -> None: ...

    assert arguments(nested, {"limits": {"most": 2}}, "n") == {"limits": Limits(most=2)}
    assert flat_forms(nested) == []


def test_the_forms_of_shared_options_come_after_those_that_they_extend():
    assert flat_forms(Other) == [Limits, Bounds]
