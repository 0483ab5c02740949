"""Rewards with known faults, and prompts without volumes to try them on."""

import random
import re

from evidcore_plugin_hub.lint.linting import made_cases
from evidcore_plugin_reports.task import ReportTask

from evidcore.api import Reward, Score
from evidcore.builtin.choice import Choice
from evidcore.builtin.rewards import ChoiceAccuracy, Format
from evidcore.builtin.views import Volume
from evidcore.prompts.rows import PromptSet, PromptSource
from evidcore.reward.composer import NamedReward


def rows(task=None, prompts=12):
    name = "report" if isinstance(task, ReportTask) else "choice"
    item = PromptSet(name=name, task=task or Choice(), view=Volume(), cases=made_cases(prompts))
    source = PromptSource([item], seed=3)
    return [source[position] for position in range(prompts)]


def named(reward, **keys):
    return NamedReward(name=keys.pop("name", type(reward).__name__), reward=reward, **keys)


def sound():
    return [named(Format(), weight=0.3), named(ChoiceAccuracy())]


class Planted(Reward):
    """Pays by a function of a rollout, or of all of them."""

    bounds = (-1000.0, 1000.0)

    def __init__(self, each=None, every=None, **said):
        self.each, self.every, self.calls = each, every, 0
        for key, value in said.items():
            setattr(self, key, value)

    def __call__(self, rollouts, earlier):
        self.calls += 1
        values = self.every(rollouts) if self.every else [self.each(item) for item in rollouts]
        return [Score(value=float(value)) for value in values]


def is_right(one):
    return float(one.answer.choice == one.prompt.reference["letter"])


def words(text):
    return set(text.lower().replace(".", " ").split())


def share_of(reference, text):
    return len(words(reference) & words(text)) / len(words(reference))


def option_words(one):
    letter, options = one.prompt.reference["letter"], one.prompt.reference["options"]
    return one.answer.choice == options["ABCDEFGH".index(letter)]


def first_of_group(rollouts):
    seen = set()
    return [is_right(item) + float(item.group not in seen and not seen.add(item.group)) for item in rollouts]


def rank_in_batch(rollouts):
    values = [is_right(item) + 0.001 * len(item.text) for item in rollouts]
    return [sum(other < value for other in values) / len(values) for value in values]


def by_the_first_key(rollouts):
    key = rollouts[0].prompt.reference["letter"]  # as where labels are repeated once too often
    return [float(item.answer.choice == key) for item in rollouts]


def rank_in_group(rollouts):
    groups = {}
    for item in rollouts:
        groups.setdefault(item.group, []).append(is_right(item))
    return [is_right(item) - sum(groups[item.group]) / len(groups[item.group]) for item in rollouts]


def is_named(one):
    return one.prompt.reference["letter"] in one.text.partition("<answer>")[2]


def in_tags(one):
    return [said.strip() for said in re.findall(r"<answer>(.*?)</answer>", one.text, re.DOTALL)]


def recalled(one):
    return sum(f"is {name}" in (one.answer.report or "") for name in one.prompt.case.present()) / 2


COIN = random.Random(5)

BAD = {  # what it does: the reward, and the check that must raise an alarm
    "constant": (lambda: Planted(lambda one: 0.5), "right over wrong"),
    "length": (lambda: Planted(lambda one: len(one.text) / 1000), "length"),
    "right and length": (lambda: Planted(lambda one: is_right(one) + len(one.text) / 1000), "length"),
    "letter A": (lambda: Planted(lambda one: one.answer.choice == "A"), "right over wrong"),
    "right, A pays 4 times": (
        lambda: Planted(lambda one: is_right(one) * (4 if one.answer.choice == "A" else 1)), "option order"
    ),
    "format alone": (lambda: Planted(lambda one: one.answer.malformed is None), "right over wrong"),
    "parrots the report": (
        lambda: Planted(lambda one: share_of(one.prompt.case.report.text, one.text)), "copied report"
    ),
    "echoes the prompt": (
        lambda: Planted(lambda one: share_of(one.prompt.words(), one.text)), "echoed prompt"
    ),
    "letter against option words": (lambda: Planted(option_words), "right over wrong"),
    "anti-correlated": (lambda: Planted(lambda one: -is_right(one)), "right over wrong"),
    "non-deterministic": (lambda: Planted(lambda one: is_right(one) + 0.1 * COIN.random()), "repeat"),
    "saturating": (lambda: Planted(lambda one: min(1.0, is_right(one) + 5)), "right over wrong"),
    "first of its group": (lambda: Planted(every=first_of_group), "company"),
    "the first prompt's key": (lambda: Planted(every=by_the_first_key), "company"),
    "rank in the whole batch": (lambda: Planted(every=rank_in_batch), "company"),
    "any of several answers": (
        lambda: Planted(lambda one: one.prompt.reference["letter"] in in_tags(one)), "everything affirmed"
    ),
    "each of several answers": (
        lambda: Planted(lambda one: in_tags(one).count(one.prompt.reference["letter"])), "malformed"
    ),
    "silence": (lambda: Planted(lambda one: is_right(one) or not one.text), "no answer"),
    "an empty answer": (lambda: Planted(lambda one: is_right(one) or in_tags(one) == [""]), "no answer"),
    "an option that is not there": (
        lambda: Planted(lambda one: is_right(one) or in_tags(one) not in [[c] for c in "ABCD"]), "no answer"
    ),
    "names all options": (lambda: Planted(is_named), "everything affirmed"),
}  # fmt: skip
