"""Do drawn answers crash a reader, or earn what they must not? All tasks, rollouts, tools and rewards.

make fuzz                                     100,000 answers, a quarter of an hour on a CPU core, no download
python benchmarks/fuzz_answers.py --answers 2000 --seed 3 --without-time

Answers are drawn from a grammar of tags, halves of tags, JSON, numbers, words and control characters, and
made from gold answers by mutations; some call tools before. Each is read by every task, and goes through a
rollout and all rewards that cost nothing to a line of the rollout file. Held is:

- nothing raises, and what cannot be carried out is told to the model in a few words;
- a well-formed answer has the tags of the gold answer and nothing outside them, by a second reader;
- a malformed answer earns nothing under `format`, and less than the best well-formed one of its group under
  any reward that does not declare that it reads leniently (`declared["malformed"]`);
- a hundred thousand characters take no longer than 30 times what ten thousand do, whatever is repeated.

Components are found in the registry. One that cannot be built without options has them in OPTIONS.
"""

import argparse
import collections
import dataclasses
import itertools
import json
import math
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore_testing.data import FINDINGS, volume_case

from evidcore.builtin.views import Slices
from evidcore.case import Action, Answer, Episode, Part, Prompt, Reply, Rollout, Score, TextPart, VisualPart
from evidcore.contracts import Policy, Reward, RolloutStrategy, Sampler, Task
from evidcore.errors import DataError
from evidcore.prompts.rows import Row
from evidcore.registry import factory, offers
from evidcore.reward.composer import NamedReward, RewardComposer, record
from evidcore.runs.folder import append, read_lines
from evidcore.train.trl.trainer import read_answers

Tables = Mapping[str, Sequence[Mapping[str, Any]]]
OPTIONS: Mapping[str, Tables] = {
    "task": {
        "choice": [{}, {"think": False}],
        "free-text": [{}, {"think": False}],
        "reasoning-segmentation": [{"ask": "masks"}, {"ask": "masks", "think": False}],
        "report-evidence": [{}, {"think": True, "order": "evidence-first"}, {"cite": "finding"}],
        "zoom-choice": [{"tool": {"use": "zoom"}}],
        "zoom-free-text": [{"tool": {"use": "zoom"}}],
        "zoom-onto": [{"tool": {"use": "zoom"}, "structures": list(FINDINGS)}],
    },
    "reward": {
        "choice-accuracy": [{}, {"reading": "lenient", "name": "lenient-accuracy"}],
        "cross-view": [{"reader": {"use": "policy-reader"}, "control": "none"}],
        "report-consistency": [{"scorer": {"use": "token-f1"}}],
        "volume-consistency": [{"segmenter": {"use": "region-growing"}}],
        "zoom-consensus": [{"success": "choice-accuracy"}],
    },
    "tool": {"zoom": [{"smallest_side": 4}]},
    "rollout": {"tool-call": [{}, {"max_tool_calls": 5}], "entropy-regrounding": [{"gamma": 5.0}]},
}
ANSWERS_AT_ONCE = 12  # drawn for a prompt, judged beside its gold answer
MOST_TOLD = 700  # letters of what a model is told of a bad call
SIZES, MOST_GROWTH, LEAST_MS = (1_000, 10_000, 100_000), 30.0, 20.0  # linear is 10, quadratic 100
CONTROL = ("<|im_end|>", "<|im_start|>", "<|vision_start|>", "<|image_pad|>", "<|endoftext|>")


class Affirming(Policy):
    """Affirms every finding of the tiny cases; what a `policy-reader` asks."""

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        """Say so to each prompt."""
        return [" ".join(f"There is a {name}." for name in FINDINGS)] * len(prompts)

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Prefer nothing."""
        return [[0.0] * len(some) for some in completions]


class Typist(Sampler):
    """Writes given turns, a character a token, and is shown tools' answers as a processor would take them."""

    vocabulary = 0x110000

    def __init__(self, turns: Sequence[str], strategy: RolloutStrategy) -> None:
        self.turns = turns
        self.stop_texts, self.reads_entropies = tuple(strategy.stop_texts), strategy.reads_entropies

    def sample(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Write on to the next stop text, or to the end of the turn."""
        return [one if one.finished else self._continued(one) for one in episodes]

    def _continued(self, episode: Episode) -> Episode:
        turn = self.turns[min(len(episode.replies), len(self.turns) - 1)]
        written = len(episode.ids) - (episode.replies[-1].stop if episode.replies else 0)
        ends = [
            at + len(stop) for stop in self.stop_texts if (at := turn.find(stop, max(0, written - 1))) >= 0
        ]
        stop = min((end for end in ends if end > written), default=len(turn))
        ids = tuple(map(ord, turn[written:stop]))
        unsure = [
            (place * 2654435761 + one) % 97 / 9.7 for place, one in enumerate(ids * self.reads_entropies)
        ]
        return dataclasses.replace(
            episode,
            ids=episode.ids + ids,
            loss_mask=episode.loss_mask + (1,) * len(ids),
            entropies=(*episode.entropies, *unsure),
            finished=not turn[:stop].rstrip().endswith(self.stop_texts or ("\0",)),
        )

    def extend(self, episode: Episode, parts: Sequence[Part], actions: Sequence[Action] = ()) -> Episode:
        """Show what a tool gave; control tokens are refused, and letters that no tokenizer takes."""
        texts = [part.text if isinstance(part, TextPart) else "\N{FRAME WITH PICTURE}" for part in parts]
        for text in texts:
            text.encode()
            if found := next((token for token in CONTROL if token in text), None):
                raise DataError(f"a tool's answer: its text holds the control token {found!r}")
        start, ids = len(episode.ids), tuple(map(ord, "".join(texts)))
        reply = Reply(start=start, stop=start + len(ids), actions=tuple(actions), parts=tuple(parts))
        crops = tuple((start, part.crop) for part in parts if isinstance(part, VisualPart))
        return dataclasses.replace(
            episode,
            ids=episode.ids + ids,
            loss_mask=episode.loss_mask + (0,) * len(ids),
            entropies=episode.entropies + (0.0,) * len(ids) * self.reads_entropies,
            crops=episode.crops + crops,
            replies=(*episode.replies, reply),
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return tokens as text; half a surrogate pair comes out as tokenizers write it."""
        text = "".join(map(chr, ids))
        return text if text.isascii() else text.encode("utf-8", "replace").decode()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """A prompt with its task and its gold answer."""

    label: str  # of the task with its options
    task: Task
    prompt: Prompt
    gold: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installed:
    """What answers go through."""

    asked: Sequence[Asked]
    strategies: Mapping[str, RolloutStrategy]
    rewards: Sequence[NamedReward]
    left_out: Mapping[str, str]  # rewards that are not asked, and why


def installed(folder: Path) -> Installed:
    """Build every task, tool, rollout and reward that is installed, over cases written into `folder`."""
    cases = [volume_case(folder, seed) for seed in range(4)]
    view = Slices()
    given: dict[str, Any] = {
        "view": view, "recipe_folder": folder, "cache_folder": folder / "cache", "cases": lambda: cases,
        "policy": Affirming(), "start_policy": Affirming(),
    }  # fmt: skip

    def every(kind: str) -> Iterator[tuple[str, Any]]:
        for offer in offers(kind):
            for table in OPTIONS.get(kind, {}).get(offer.name, [{}]):
                told = {key: value for key, value in table.items() if key != "name"}
                made = factory.build(kind, {"use": offer.name, **told}, given=given, where=offer.name)
                yield str(table.get("name", f"{offer.name} {json.dumps(told)}" if told else offer.name)), made

    given["tools"] = [tool for _, tool in every("tool")]
    asked = [
        Asked(label=label, task=task, prompt=prompt, gold=task.gold(prompt)[0])
        for label, task in every("task")
        for case in cases
        for prompt in task.prompts(case, view, 0)
    ]
    rewards: list[NamedReward] = []
    left_out = {}
    for label, reward in every("reward"):
        name = label.partition(" ")[0]
        if reward.audit_exemption:
            left_out[name] = reward.audit_exemption
        else:
            rewards.append(NamedReward(name=name, reward=reward))
    rewards.sort(key=lambda one: bool(one.reward.requires))
    return Installed(asked=asked, strategies=dict(every("rollout")), rewards=rewards, left_out=left_out)


TAG_NAMES = ("think", "answer", "report", "evidence", "tool_call", "tool_response")
TAGS = tuple(f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/"))
HALVES = (
    "<", "</", ">", "<answer", "answer>", "</answer", "<think", "< answer >", "<ANSWER>", "<answer/>",
    "</>", "<>",
    "<answer\n>", "<tool_call", "tool_call>", "</tool_call", "<!--", "<a", "\uff1canswer\uff1e",
)  # fmt: skip
WORDS = (
    "There is a lung nodule.", "no", "A", "B", "(C)", "D)", "the answer is B.", "option", "choice: A",
    "answer",
    "pleural effusion", "not", "right", "slice 6", "None", "a", "e", "A B C D", "lung nodule",
    "I cannot tell", ".",
)  # fmt: skip
NUMBERS = (
    "0", "1", "-1", "6", "12", "500", "1000", "1001", "999", "0.5", "1e3", "1e999", "-1e999", "NaN",
    "Infinity",
    "1e-320", "true", "false", "null", "9" * 20, "9" * 400, "9" * 4301, "-0", "0x10", "06", "1_0",
)  # fmt: skip
ODD = (
    *CONTROL, "\x00", "\x1b[31m", "\ud800", "\udfff", "\u202e", "\u2028", "\ufeff", "\u200b",
    "\N{GRINNING FACE}",
    "größer", "\\", "\\ud800", '"', "'", "{", "}", "[", "]", ",", ":", "%s", "{0}", "\n", "\t",
    " " * 50, "\r",
)  # fmt: skip
KEYS = (
    "slice", "slices", "bbox_2d_list", "bbox_2d", "entities", "name", "arguments", "box", "label", "volume",
    "from", "to", "lung nodule", "pleural effusion", "\\ud800", "", "no-such-key", "<|im_end|>",
)  # fmt: skip


class Drawing:
    """Draws answers from a seed."""

    def __init__(self, rng: random.Random, tools: Sequence[str]) -> None:
        self.rng, self.tools = rng, tools

    def turns(self, gold: str) -> list[str]:
        """Return the turns of an answer: up to seven that call a tool, and a last one."""
        rng = self.rng
        calls = rng.choice((0, 0, 0, 1, 1, 2, 3, 6, 7))
        return [*(self.turn_with_call(gold) for _ in range(calls)), self.answer(gold)]

    def answer(self, gold: str) -> str:
        """Return the gold answer, mutated up to five times, or a text from the grammar."""
        rng = self.rng
        if rng.random() < 0.3:
            text = "".join(self.piece() for _ in range(rng.randint(0, 14)))
        else:
            text = gold
            for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 5))):
                text = self.mutated(text)
        return text * rng.randint(2, 60) if rng.random() < 0.01 else text

    def turn_with_call(self, gold: str) -> str:
        """Return a turn that calls a tool in its form, or nearly so."""
        rng = self.rng
        before = rng.choice(("", "", "<think>closer</think>", "<think>", "<think>or ", gold, self.piece()))
        call = self.call()
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            call = self.mutated(call)
        opened = rng.choice(("<tool_call>",) * 8 + ("", "<tool_call><tool_call>"))
        closed = rng.choice(("</tool_call>",) * 9 + ("", "</tool_call>\n ", "</tool_call></tool_call>"))
        return f"{before}{opened}{call}{closed}{rng.choice(('', '', '', gold))}"

    def call(self) -> str:
        """Return the JSON of a call."""
        rng = self.rng
        if rng.random() < 0.5:  # one that a tool may carry out
            box = [0, 0, rng.randint(400, 1000), rng.randint(400, 1000)]
            name = rng.choice(self.tools)
            places = {"from": box[:2], "to": box[2:]} if name == "measure" else {"box": box}
            arguments = json.dumps({"slice": rng.choice((0, 2, 6, 11)), **places})
        else:
            arguments = self.value(3)
        name = json.dumps(rng.choice((*self.tools, *self.tools, "zom", "", "look" * 400, "<|im_end|>")))
        return f'{{"name": {name if rng.random() < 0.95 else self.value(1)}, "arguments": {arguments}}}'

    def value(self, depth: int) -> str:
        """Return JSON, or what looks like it."""
        rng = self.rng
        kind = rng.random()
        if depth == 0 or kind < 0.3:
            return rng.choice((rng.choice(NUMBERS), f'"{rng.choice((*WORDS, *ODD))}"'))
        if kind < 0.4:
            return "[" + ", ".join(rng.choice(NUMBERS) for _ in range(4)) + "]"
        if kind < 0.6:
            return "[" + ", ".join(self.value(depth - 1) for _ in range(rng.choice((0, 1, 2, 4, 9)))) + "]"
        if kind < 0.63:
            levels = rng.choice((20, 200, 480, 900, 990, 3000))
            return "[" * levels + rng.choice(NUMBERS) + "]" * levels
        pairs = (f'"{rng.choice(KEYS)}": {self.value(depth - 1)}' for _ in range(rng.randint(0, 4)))
        return "{" + ", ".join(pairs) + "}"

    def piece(self) -> str:
        """Return a word of the grammar."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.45:
            return rng.choice(TAGS)
        if kind < 0.55:
            return rng.choice(HALVES)
        if kind < 0.8:
            return rng.choice(WORDS)
        return rng.choice(ODD) if kind < 0.9 else self.value(2)

    def mutated(self, text: str) -> str:
        """Return a text with one thing changed."""
        rng = self.rng
        start, stop = sorted(rng.randint(0, len(text)) for _ in range(2))
        part = text[start:stop]
        tags = [found.span() for found in re.finditer(r"</?\w+>", text)]
        first, last = rng.choice(tags) if tags else (start, stop)
        numbers = [found.span() for found in re.finditer(r"-?\d+", text)]
        low, high = rng.choice(numbers) if numbers else (start, start)
        return rng.choice((
            text[:start] + text[stop:],
            text[:stop] + part + text[stop:],
            text[:start] + self.piece() + text[start:],
            text[:first] + text[last:],  # a tag less
            text[:last] + text[first:],  # a tag twice
            text[: last - 1] + text[last:],  # half of a tag
            text[:first] + rng.choice((*TAGS, *HALVES)) + text[last:],
            text[:low] + rng.choice(NUMBERS) + text[high:],
            text[:low] + self.value(2) + text[high:],
            text[:stop],
            text[start:],
            f"{self.piece()}{text}",
            f"{text}{self.piece()}",
            f"\n {text}\t",
            text + text,
            rng.choice((text.upper(), text.lower(), text[::-1], text.replace("<", "").replace(">", ""))),
        ))  # fmt: skip


def skeleton(text: str) -> tuple[list[str], str]:
    """Return the tags of a text in order, and what stands outside of the pairs they make."""
    tags, outside, end = [], "", 0
    at = text.find("<")
    while at >= 0:
        stop = text.find(">", at)
        if stop < 0:
            break
        name = text[at + 1 : stop].removeprefix("/")
        if name and all(letter == "_" or (letter.isascii() and letter.isalpha()) for letter in name):
            if len(tags) % 2 == 0:
                outside += text[end:at]
            tags.append(text[at : stop + 1])
            end, at = stop + 1, stop
        at = text.find("<", at + 1)
    return tags, outside + text[end:]


def form_fault(text: str, gold: str) -> str | None:
    """Return why a text cannot be well-formed where `gold` is, by a reader that knows no task."""
    tags, outside = skeleton(text)
    wanted, beside = skeleton(gold)
    if tags != wanted:
        return f"has the tags {tags}, gold has {wanted}"
    if bool(outside.strip()) != bool(beside.strip()):
        return f"has {outside.strip()[:40]!r} outside the tags, gold has {beside.strip()[:40]!r}"
    return None


class Faults:
    """What did not hold, by kind, with the shortest text of each."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.examples: dict[str, str] = {}

    def add(self, what: str, example: object) -> None:
        """Count a fault."""
        self.counts[what] += 1
        shown = repr(example)
        if len(shown) < len(self.examples.get(what, shown + " ")):
            self.examples[what] = shown

    def add_raised(self, where: str, cause: Exception, example: object) -> None:
        """Count an exception by where it came from."""
        frame = next((one for one in reversed(traceback.extract_tb(cause.__traceback__))), None)
        place = f"{Path(frame.filename).name}:{frame.name}" if frame else "?"
        self.add(f"{where} raises {type(cause).__name__} in {place}: {str(cause)[:120]}", example)

    def lines(self) -> list[str]:
        """Return a line for each kind, most frequent first."""
        return [
            f"{count:7,} x {what}\n            {self.examples[what][:400]}"
            for what, count in self.counts.most_common()
        ]


def read_by_all(asked: Sequence[Asked], texts: Sequence[str], faults: Faults) -> None:
    """Have each task read texts."""
    for text in texts:
        for one in asked:
            try:
                answer = one.task.parse(one.prompt, text)
            except Exception as cause:  # what is looked for
                faults.add_raised(f"task {one.label}", cause, text)
                continue
            hold_read(one, text, answer, faults)


def hold_read(one: Asked, text: str, answer: Answer, faults: Faults) -> None:
    """Hold what a task read to its contract and to its gold answer's form."""
    if answer.text != text:
        faults.add(f"task {one.label}: an answer does not hold the text as written", text)
    if answer.malformed is None and (fault := form_fault(text, one.gold)):
        faults.add(f"task {one.label}: well-formed, but not in gold's form", f"{fault} | {text}")
    if answer.malformed is not None and not answer.malformed.strip():
        faults.add(f"task {one.label}: malformed without a reason", text)
    if len(answer.malformed or "") > MOST_TOLD:
        faults.add(f"task {one.label}: the reason is longer than {MOST_TOLD} letters", answer.malformed)


def rolled_out(
    one: Asked, label: str, strategy: RolloutStrategy, turns: Sequence[str], faults: Faults
) -> list[Rollout]:
    """Let an answer come about by a strategy, and have its task read it."""
    sampler = Typist(turns, strategy)
    try:
        episodes = strategy(sampler, [one.prompt], 2)  # the second one may be a fork
        rollouts = read_answers(sampler, episodes, [Row(prompt=one.prompt, task=one.task)], 2)
    except Exception as cause:  # what is looked for
        faults.add_raised(f"rollout {label}", cause, turns)
        return []
    for rollout in rollouts:
        for turn in rollout.turns:
            told = "".join(part.text for part in turn.reply if isinstance(part, TextPart))
            if len(told) > MOST_TOLD:
                faults.add(f"rollout {label}: a tool answers with over {MOST_TOLD} letters", told)
    return rollouts


def judge(
    one: Asked, rollouts: Sequence[Rollout], rewards: Sequence[NamedReward], file: Path, faults: Faults
) -> tuple[int, int]:
    """Judge a group, write its line, and return how many were malformed and how many verdicts were given."""
    rollouts = [dataclasses.replace(each, group=0, parent=None) for each in rollouts]
    composer = RewardComposer(rewards)
    try:
        judgement = composer(rollouts)
        file.unlink(missing_ok=True)
        append(file, record(judgement, rewards, rollouts, len(rollouts)))
        read_lines(file)
    except Exception as cause:  # what is looked for
        faults.add_raised(
            f"rewards of task {one.label}", cause.__cause__ or cause, [each.text for each in rollouts][:3]
        )
        return 0, 0
    malformed = [each.answer.malformed is not None for each in rollouts]
    verdicts = 0
    for item in rewards:
        scores = judgement.verdicts[item.name]
        verdicts += sum(isinstance(score, Score) for score in scores)
        for place, what in overpaid(item, scores, malformed):
            faults.add(f"reward {item.name}, task {one.label}: {what}", rollouts[place].text)
    return sum(malformed), verdicts


def overpaid(
    item: NamedReward, scores: Sequence[Any], malformed: Sequence[bool]
) -> Iterator[tuple[int, str]]:
    """Yield which malformed answers of a group a reward pays too much, and what is wrong."""
    reward: Reward = item.reward
    pairs = [(place, one.value) for place, one in enumerate(scores) if isinstance(one, Score)]
    best = max((value for place, value in pairs if not malformed[place]), default=math.inf)
    for place, value in pairs:
        if not malformed[place]:
            continue
        if item.name == "format" and value > 0:
            yield place, "pays a malformed answer"
        is_held = reward.judges != frozenset() and "malformed" not in reward.declared
        if is_held and value >= best > reward.bounds[0]:
            yield place, "pays a malformed answer as much as the best well-formed one"


def growth(
    read: Callable[[str], object], make: Callable[[int], str], clock: Callable[[], float] = time.process_time
) -> str | None:
    """Return what is wrong with the time that a reader takes for longer and longer texts; None: nothing."""
    for sizes in itertools.pairwise(SIZES):
        least_s = [math.inf, math.inf]
        for _ in range(4):  # what looks slow is measured again: something else may have run beside it
            for place, size in enumerate(sizes):
                text, began = make(size), clock()
                read(text)
                least_s[place] = min(least_s[place], clock() - began)
            shorter_s, longer_s = least_s
            if 1000 * longer_s <= LEAST_MS or longer_s <= MOST_GROWTH * shorter_s:
                break
        else:
            return f"{longer_s:.3f} s for {sizes[1]:,} characters, {shorter_s:.5f} s for {sizes[0]:,}"
    return None


def repeated(ends: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Callable[[int], str]]]:
    """Yield texts of any length, and what they are: something over and over, and what stands around it."""
    pieces = (
        *TAGS, *HALVES, *WORDS, "[", "{", '{"a":', "[1,", "]", "}", '"', "\\", "9", " ", "\n", "(", "a ",
        "A ", "A)",
        "answer ", "answer: ", "the answer is", "[0, 0, 1, 1], ", "no ", "\N{GRINNING FACE}",
        "<answer>A</answer>",
    )  # fmt: skip
    for before, after in ends:
        for piece in pieces:

            def make(size: int, before: str = before, piece: str = piece, after: str = after) -> str:
                return f"{before}{piece * (size // len(piece))}{after}"

            yield f"{before[-20:]!r} + {piece!r} * n + {after[:20]!r}", make


CALLS = (
    "<tool_call>{}</tool_call>",
    '<tool_call>{{"name": "zoom", "arguments": {{"box": [1, 2{}]}}}}</tool_call>',
)


def slower_than_linear(world: Installed, faults: Faults) -> int:
    """Measure every reader over long texts; return how many times one was measured."""
    count = 0
    firsts = {one.label: one for one in world.asked}
    for label, one in firsts.items():
        gold, half = one.gold, len(one.gold) // 2
        ends = [("", gold), (gold[:half], gold[half:]), ("answer", "z"), ("the answer is", "z"), ("", "")]
        for told, make in repeated(ends):
            count += 1
            if found := growth(lambda text, one=one: one.task.parse(one.prompt, text), make):
                faults.add(f"task {label} is slower than linear", f"{told}: {found}")
    prompt = next(iter(firsts.values())).prompt
    for label, strategy in world.strategies.items():
        for told, make in repeated([("", "")]) if strategy.stop_texts else ():
            for form in CALLS:

                def call(text: str, strategy: RolloutStrategy = strategy, form: str = form) -> object:
                    return strategy(Typist([form.format(text), "A"], strategy), [prompt], 2)

                count += 1
                if found := growth(call, make):
                    faults.add(f"rollout {label} is slower than linear", f"{form.format(told)}: {found}")
    return count


def fuzz(answers: int, seed: int, folder: Path, *, times: bool = False) -> tuple[list[str], Faults]:
    """Draw answers, hold what becomes of them, and return lines that tell what was done, and the faults."""
    world, faults, began = installed(folder), Faults(), time.perf_counter()
    rng = random.Random(seed)
    tools = [tool for strategy in world.strategies.values() for tool in getattr(strategy, "tools", {})]
    drawing = Drawing(rng, sorted(set(tools)))
    strategies = list(world.strategies.items())
    firsts = list({one.label: one for one in world.asked}.values())
    drawn = rollouts = malformed = verdicts = calls = errors = 0
    while drawn < answers:
        one = world.asked[(drawn // ANSWERS_AT_ONCE) % len(world.asked)]
        group = [
            Rollout(prompt=one.prompt, group=0, text=one.gold, answer=one.task.parse(one.prompt, one.gold))
        ]
        for _ in range(min(ANSWERS_AT_ONCE, answers - drawn)):
            turns = drawing.turns(one.gold)
            read_by_all(firsts, [turns[-1]], faults)
            group += rolled_out(one, *strategies[drawn % len(strategies)], turns, faults)
            drawn += 1
        actions = [action for each in group for action in each.actions]
        calls, errors = calls + len(actions), errors + sum(action.error is not None for action in actions)
        wrong, given = judge(one, group, world.rewards, folder / "rollouts.jsonl", faults)
        rollouts, malformed, verdicts = rollouts + len(group), malformed + wrong, verdicts + given
    said = [
        f"seed {seed}: {drawn:,} answers, each read by {len(firsts)} tasks: "
        + ", ".join(one.label for one in firsts),
        f"{rollouts:,} rollouts by {', '.join(world.strategies)}, {malformed:,} of them malformed",
        f"{calls:,} calls of {', '.join(drawing.tools)}, {errors:,} of them answered with an error",
        f"{verdicts:,} verdicts of {', '.join(item.name for item in world.rewards)}",
        *(f"not asked: {name}: {why}" for name, why in world.left_out.items()),
        f"{time.perf_counter() - began:.0f} s",
    ]  # fmt: skip
    if times:
        began = time.perf_counter()
        count = slower_than_linear(world, faults)
        sizes = f"{SIZES[0]:,} to {SIZES[-1]:,} characters"
        said.append(f"{count:,} times a reader over texts of {sizes}: {time.perf_counter() - began:.0f} s")
    return said, faults


def main() -> None:
    """Fuzz and print; exit 1 where something did not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=int, default=100_000, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=17, help="of the draws")
    parser.add_argument("--without-time", action="store_true", help="leave out what long texts take")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        said, faults = fuzz(asked.answers, asked.seed, Path(folder), times=not asked.without_time)
    print("\n".join([*said, *faults.lines(), f"{len(faults.counts)} kinds of faults"]))
    sys.exit(bool(faults.counts))


if __name__ == "__main__":
    main()
