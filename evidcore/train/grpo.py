"""Stage `grpo`: group relative policy optimisation against composed rewards."""

import dataclasses
import inspect
import logging
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import MinLen

from evidcore.case import Case
from evidcore.contracts import Engine, Reward, StageContext, StageResult, Workload
from evidcore.contracts.judging import Checked
from evidcore.contracts.stage import Key, Problems
from evidcore.errors import EvidError, RecipeError, did_you_mean
from evidcore.prompts.rows import PromptSource
from evidcore.recipe.schema import RecipeContext, Table
from evidcore.registry import Offer, blame, watch
from evidcore.registry.factory import Kind, named_offer, offer_of
from evidcore.reward.composer import NamedReward
from evidcore.train.sampler import RolloutPolicy
from evidcore.train.settings import GrpoSettings, TrainingStage

log = logging.getLogger(__name__)

AUDITED_PROMPTS = 4  # over which rewards are judged before the first step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grpo(GrpoSettings, TrainingStage):
    """Group relative policy optimisation against rewards."""

    reward: Annotated[tuple[Annotated[Table, Kind("reward")], ...], MinLen(1)]
    rollout: Annotated[Table, Kind("rollout")] | None = dataclasses.field(
        default_factory=lambda: {"use": "plain"}
    )
    sampler: Annotated[Table, Kind("sampler")] = dataclasses.field(
        default_factory=lambda: {"use": "in-process"}
    )

    trainer: ClassVar[str] = "grpo"

    @classmethod
    def problems(cls, table: Mapping[str, Any], at: Key, around: RecipeContext) -> Problems:
        """Yield what training keys, gates and weights say against each other."""
        yield from super().problems(table, at, around)
        given = table.get("reward")
        tables = [item for item in given if isinstance(item, Mapping)] if isinstance(given, list) else []
        names: list[str] = []
        for index, reward in enumerate(tables):
            here: Key = (*at, "reward", index)
            name, gate = reward.get("name") or str(reward.get("use")).rpartition("/")[2], reward.get("gate")
            if name in names:
                yield here, f"a second reward is called {name!r}. Give this one a name = '…' of its own."
            if isinstance(gate, str) and gate and gate not in names:
                listing = ", ".join(names) or "none"
                text = f"must be a reward above this one, got {gate!r}.{did_you_mean(gate, names)}"
                yield (*here, "gate"), f"{text} Above: {listing}."
            names.append(str(name))
        if tables and all(reward.get("weight") == 0 for reward in tables):
            yield (
                (*at, "reward"),
                "every weight is 0, so nothing would be learnt. Give at least one a weight above 0.",
            )

    def check(self, context: StageContext) -> None:
        """Build the rewards and how answers come about; warn where what judges texts hears no denial."""
        rewards = self.rewards(context)
        counted = [item for item in rewards if item.weight]
        deaf = [item.name for item in counted if not item.reward.detects_negation]
        unsaid = {"format", "evidence"}
        judging = [item.name for item in counted if item.reward.judges is None or item.reward.judges - unsaid]
        if deaf and deaf == judging:
            says = "hardly tells a finding from its denial, and nothing else judges what is said"
            log.warning("%s: reward %s %s", context.where, ", ".join(map(repr, deaf)), says)
        super().check(context)
        strategy = self.strategy(context)
        assert strategy is not None  # one is filled in where none is named
        for says in self.engine(context).refusals(self.workload(), strategy):
            raise RecipeError(f"{context.where}.sampler: {self.sampler['use']!r} does not fit: {says}")
        for reward in [] if context.is_dry_run else rewards:
            with blame(offer_of(reward.reward), f"looking for what {context.where} needs"):
                reward.reward.ready()

    def engine(self, context: StageContext) -> Engine:
        """Return what writes the answers."""
        result: Engine = context.component("sampler", self.sampler, "sampler")
        return result

    def rewards(self, context: StageContext, key: str = "reward") -> list[NamedReward]:
        """Return the rewards, in the recipe's order; another key gives others of the same tables."""

        def cases() -> list[Case]:  # of the stage's data, each once
            each = {(use.dataset, case.id): case for use in self.data for case in context.cases(use)}
            return [*each.values()]

        result = list[NamedReward]()
        for index, table in enumerate(self.reward):
            reward: Reward = context.component("reward", table, f"{key}[{index}]", cases=cases)
            offer = offer_of(reward)
            above = [item.name for item in result]
            if lacking := [name for name in reward.requires if name not in above]:
                listing = ", ".join(above) or "none"
                raise RecipeError(
                    f"{context.where}.reward[{index}]: needs a reward {lacking[0]!r} above it."
                    f"{did_you_mean(lacking[0], above)} Above: {listing}."
                )
            result.append(
                NamedReward(
                    name=table["name"] or table["use"].rpartition("/")[2],
                    reward=reward,
                    weight=table["weight"],
                    gate=table["gate"],
                    package=f"{offer.package} {offer.version}",
                    asks_policy=asks_policy(offer, table, context.recipe.services),
                )
            )
        return result

    def audit(self, context: StageContext, source: PromptSource) -> list[Checked]:
        """Judge the rewards before anything is trained on them, and warn of what is wrong.

        An installed package does; without one a warning says so. Others of the same tables are asked, so that
        rewards which remember calls begin as they would without.
        """
        judge = watch("rewards")
        if judge is None:
            says = "its rewards are not audited. `pip install evidcore-plugin-hub` brings what does that"
            log.warning("%s: %s", context.where, says)
            return []
        rows = [source[position] for position in range(AUDITED_PROMPTS)]
        rewards = self.rewards(context, "audited reward")
        try:
            result: list[Checked] = judge.audit_rewards(rewards, rows, thorough=False)
        except EvidError as reason:
            log.warning("%s: its rewards could not be audited: %s", context.where, reason)
            return []
        for item in result:
            if item.outcome == "alarm":
                whose = f"reward {item.reward!r}" if item.reward else "the rewards"
                log.warning("%s: %s, %s: %s", context.where, whose, item.check, item.says)
        return result

    def workload(self) -> Workload:
        """Return prompts, answers and steps."""
        text = f"{self.steps} steps of {self.prompts_per_step} prompts x {self.answers_per_prompt} answers"
        if self.replay is not None:
            text += f", {self.replay.rows_per_step} rows replayed"
        also = f", rewards {', '.join(table['use'] for table in self.reward)}"
        if self.replay is not None:
            again = ", ".join(dict.fromkeys(f"{use.dataset}/{use.task}" for use in self.replay.data))
            also += f"; held to its start on {again}"
        return self._workload(
            text, also=also, prompts_per_step=self.prompts_per_step,
            prompts_per_forward=self.prompts_per_forward or self.prompts_per_step,
            answers_per_prompt=self.answers_per_prompt, share_prompts=self.share_prompts,
            answers_tokens=self.max_new_tokens, samples=True, limits=self.limits,
            keeps_reference=(bool(self.trl.get("beta")) or self.replay is not None) and self.lora is None,
            replay=() if self.replay is None else self.replay.data,
            replayed_rows=0 if self.replay is None else self.replay.rows_per_step,
        )  # fmt: skip

    def run(self, context: StageContext) -> StageResult:
        """Optimise the model against the rewards, and save it."""
        from evidcore.train.trl.grpo import grpo  # importing trl takes 6 s

        model, processor = context.model()
        seed, source = context.recipe.seed, self.source(context, self.data)
        strategy = self.strategy(context)
        assert strategy is not None  # one is filled in where none is named
        context.bind_policy(RolloutPolicy(model, processor, strategy, seed=seed))
        audited = self.audit(context, source)
        replay = None if self.replay is None else self.source(context, self.replay.data)
        figures = grpo(
            model, processor, source, self.rewards(context), self, context.folder / "checkpoint",
            seed=seed, announce=context.announce, strategy=strategy, resume=context.resume,
            replay=replay, engine=self.engine(context),
            measure=self.measurement(context, model, processor),
        )  # fmt: skip
        outcomes = {item.check: item.outcome for item in audited if not item.reward}
        return StageResult(figures={**figures, "reward_audit": outcomes})


def asks_policy(offer: Offer, table: Table, services: Mapping[str, Table]) -> bool:
    """Tell whether a reward, or a service that it names, is given the model that is trained."""
    named = [services[name] for name in table.values() if isinstance(name, str) and name in services]
    offers = [offer, *(named_offer(str(item["kind"]), item) for item in named)]
    return any("policy" in inspect.signature(item.load()).parameters for item in offers)
