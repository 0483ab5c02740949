"""Rewards with known faults, and prompts without volumes to try them on."""

import random
import re
from functools import partial

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


def letter_of(one):
    return one.prompt.reference["letter"]


def is_right(one):
    return float(one.answer.choice == letter_of(one))


def words(text):
    return set(text.lower().replace(".", " ").split())


def share_of(reference, text):
    return len(words(reference) & words(text)) / len(words(reference))


def option_words(one):
    return one.answer.choice == one.prompt.reference["options"]["ABCDEFGH".index(letter_of(one))]


def first_of_group(rollouts):
    seen = set()
    return [is_right(item) + float(item.group not in seen and not seen.add(item.group)) for item in rollouts]


def rank_in_batch(rollouts):
    values = [is_right(item) + 0.001 * len(item.text) for item in rollouts]
    return [sum(other < value for other in values) / len(values) for value in values]


def by_the_first_key(rollouts):
    key = letter_of(rollouts[0])  # as where labels are repeated once too often
    return [float(item.answer.choice == key) for item in rollouts]


def rank_in_group(rollouts):
    groups = {}
    for item in rollouts:
        groups.setdefault(item.group, []).append(is_right(item))
    return [is_right(item) - sum(groups[item.group]) / len(groups[item.group]) for item in rollouts]


def in_tags(one):
    return [said.strip() for said in re.findall(r"<answer>(.*?)</answer>", one.text, re.DOTALL)]


def recalled(one):
    return sum(f"is {name}" in (one.answer.report or "") for name in one.prompt.case.present()) / 2


COIN = random.Random(5)

EACH = {  # what it pays for an answer, and the check that must raise an alarm
    "constant": (lambda one: 0.5, "right over wrong"),
    "length": (lambda one: len(one.text) / 1000, "length"),
    "right and length": (lambda one: is_right(one) + len(one.text) / 1000, "length"),
    "letter A": (lambda one: one.answer.choice == "A", "right over wrong"),
    "right, A pays 4 times": (
        lambda one: is_right(one) * (4 if one.answer.choice == "A" else 1), "option order"
    ),
    "format alone": (lambda one: one.answer.malformed is None, "right over wrong"),
    "parrots the report": (lambda one: share_of(one.prompt.case.report.text, one.text), "copied report"),
    "echoes the prompt": (lambda one: share_of(one.prompt.words(), one.text), "echoed prompt"),
    "letter against option words": (option_words, "right over wrong"),
    "anti-correlated": (lambda one: -is_right(one), "right over wrong"),
    "non-deterministic": (lambda one: is_right(one) + 0.1 * COIN.random(), "repeat"),
    "saturating": (lambda one: min(1.0, is_right(one) + 5), "right over wrong"),
    "any of several answers": (lambda one: letter_of(one) in in_tags(one), "everything affirmed"),
    "each of several answers": (lambda one: in_tags(one).count(letter_of(one)), "malformed"),
    "silence": (lambda one: is_right(one) or not one.text, "no answer"),
    "an empty answer": (lambda one: is_right(one) or in_tags(one) == [""], "no answer"),
    "an option that is not there": (
        lambda one: is_right(one) or in_tags(one) not in [[c] for c in "ABCD"], "no answer"
    ),
    "names all options": (
        lambda one: letter_of(one) in one.text.partition("<answer>")[2], "everything affirmed"
    ),
}  # fmt: skip
EVERY = {"first of its group": first_of_group, "the first prompt's key": by_the_first_key,
         "rank in the whole batch": rank_in_batch}  # fmt: skip
BAD = {name: (partial(Planted, each), check) for name, (each, check) in EACH.items()}
BAD |= {name: (partial(Planted, every=every), "company") for name, every in EVERY.items()}
