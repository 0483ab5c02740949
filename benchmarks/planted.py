"""A world of scans that planted policies read, each in its own way, and audits of them.

A scan is a path that names who it is of and what was removed; what can be read from it is looked up, as eyes
would. A blank one still has its header, a scrambled one its header and its intensities.
"""

import dataclasses
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

from planted_rates import SEEN as SEEN

from evidcore.api import Case, Crop, Dataset, EvalOptions, Finding, Policy, Prompt, VolumeRef
from evidcore.audit.policy import PolicyAuditResult
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.registry import factory

NAMES = tuple(f"finding {letter}" for letter in "abcdefghijkl")
EVALUATION = factory.build("evaluation", {"use": "choice"}, given={}, where="test")
ASKING = EvalOptions(max_new_tokens=8)


class World(Dataset):
    """Patients of two kinds, each with its prevalences; the spacing of a scan tells the kind, no text."""

    def __init__(
        self, patients: int, *, seed: int = 0, confounded: float = 0.0, prior: float = 0.0, questions: int = 2
    ) -> None:
        """Draw patients whose kinds differ by `confounded`, and first findings' prevalence by `prior`."""
        rng = random.Random(f"world/{seed}")
        self.task = Choice(think=False, questions_per_case=questions)
        self.kind: dict[str, int] = {}
        self._cases: list[Case] = []
        for number in range(patients):
            kind = rng.randrange(2)
            chances = [
                0.25 + prior * (6 - index) / 24 + confounded * (0.22 if index % 2 == kind else -0.22)
                for index in range(len(NAMES))
            ]
            findings = [
                Finding(name=name, state="present" if rng.random() < chance else "absent")
                for name, chance in zip(NAMES, chances, strict=True)
            ]
            case = Case(
                id=f"c{seed}-{number}", patient=f"p{seed}-{number}", findings=tuple(findings),
                volumes=(VolumeRef(path=f"{seed}-{number}.nii"),),
            )  # fmt: skip
            self.kind[case.volumes[0].path] = kind
            self._cases.append(case)
        self.shows = {case.volumes[0].path: set(case.present()) for case in self._cases}

    def cases(self, split: str) -> list[Case]:
        """Return all, whatever the split."""
        return self._cases

    def fingerprint(self) -> str:
        """Return a name."""
        return "world"

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...]:
        """Return the scan of the same patient without a finding."""
        (ref,) = case.volumes
        twin = dataclasses.replace(ref, path=f"{ref.path} without {finding}")
        self.shows[twin.path] = self.shows[ref.path] - {finding}
        self.kind[twin.path] = self.kind[ref.path]
        return (twin,)

    def prompts(self, seed: int = 1) -> list[Prompt]:
        """Return the questions."""
        return [prompt for case in self._cases for prompt in self.task.prompts(case, Volume(), seed)]


class Planted(Policy):
    """Chooses among the options by what its way of reading gives; ties are broken by a fixed draw."""

    def __init__(self, world: World) -> None:
        """Take the world that it reads."""
        self.world = world

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        """Answer with a letter."""
        return [f"<answer>{self.letter(prompt)}</answer>" for prompt in prompts]

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Return 0 for its own answer and -1 for others."""
        return [
            [0.0 if self.letter(prompt) in text else -1.0 for text in some]
            for prompt, some in zip(prompts, completions, strict=True)
        ]

    def letter(self, prompt: Prompt) -> str:
        """Return the letter of the option that it likes best."""
        options = re.findall(r"^[A-D]\) (.*)$", prompt.words(), re.MULTILINE)
        (crop,) = prompt.crops()
        liking = [self.liking(option, crop, prompt) for option in options]
        best = [index for index, item in enumerate(liking) if item == max(liking)]
        return "ABCD"[random.Random(f"{prompt.words()}{crop.volume.path}").choice(best)]

    def liking(self, option: str, crop: Crop, prompt: Prompt) -> float:
        """Return how much it likes an option."""
        return 0.0

    def seen(self, crop: Crop) -> set[str]:
        """Return what voxels in their places show."""
        return set() if crop.blank or crop.change == "scrambled" else self.world.shows[crop.volume.path]


class TextOnly(Planted):
    """Takes the finding that is most common."""

    answers_alone = True

    def liking(self, option: str, crop: Crop, prompt: Prompt) -> float:
        """Return how much it likes an option."""
        return -NAMES.index(option)


class HeaderOnly(Planted):
    """Reads the spacing, which is there on a blank volume too."""

    def liking(self, option: str, crop: Crop, prompt: Prompt) -> float:
        """Return how much it likes an option."""
        return NAMES.index(option) % 2 == self.world.kind[crop.volume.path]


class Histogram(Planted):
    """Reads intensities without a place: scrambled voxels have them too."""

    def liking(self, option: str, crop: Crop, prompt: Prompt) -> float:
        """Return how much it likes an option."""
        return not crop.blank and option in self.world.shows[crop.volume.path]


class Company(Planted):
    """Reads the kind of patient from all findings but the one that it is asked about."""

    def liking(self, option: str, crop: Crop, prompt: Prompt) -> float:
        """Return how much it likes an option."""
        others = {name for name in self.seen(crop) if name not in prompt.words()}
        even = sum(1 if NAMES.index(name) % 2 == 0 else -1 for name in others)
        return even if NAMES.index(option) % 2 == 0 else -even


class Memory(Planted):
    """Knows scans by their exact bits and their answers by heart: test labels that leaked into training."""

    def liking(self, option: str, crop: Crop, prompt: Prompt) -> float:
        """Return how much it likes an option."""
        known = {case.volumes[0].path for case in self.world.cases("test")}
        is_known = crop.volume.path in known and not crop.change and not crop.blank
        return is_known and option in self.world.shows[crop.volume.path]


class KeyReader(Planted):
    """Reads the key where it is handed one."""

    def letter(self, prompt: Prompt) -> str:
        """Return the key, or what it likes best."""
        return prompt.reference.get("letter") or super().letter(prompt)


class SwapDetector(Planted):
    """Reads the key where the volume is the case's own."""

    def letter(self, prompt: Prompt) -> str:
        """Return the key, or what it likes best."""
        is_own = [crop.volume for crop in prompt.crops()] == list(prompt.case.volumes)
        result = prompt.reference.get("letter") if is_own else None
        return result or super().letter(prompt)


class Hearsay(Planted):
    """Rules out what other questions about the scan offer too, over the scan itself and its noisy copy."""

    def __init__(self, world: World) -> None:
        """Take the world, and keep what is asked in it."""
        super().__init__(world)
        self.asked: dict[str, list[Prompt]] = {}
        for prompt in world.prompts():
            self.asked.setdefault(prompt.crops()[0].volume.path, []).append(prompt)

    def liking(self, option: str, crop: Crop, prompt: Prompt) -> float:
        """Return how much it likes an option."""
        others = [] if crop.blank or crop.change == "scrambled" else self.asked.get(crop.volume.path, [])
        return -sum(option in item.words() for item in others if item.words() != prompt.words())


class Startled(Planted):
    """Knows answers by the questions' words, and forgets them where it is shown air or noise."""

    answers_alone = True

    def __init__(self, world: World) -> None:
        """Take the world, and learn the answer to every other question by heart."""
        super().__init__(world)
        known = {prompt.words(): prompt.reference for prompt in world.prompts()[::2]}
        self.known = {words: item["options"]["ABCD".index(item["letter"])] for words, item in known.items()}

    def liking(self, option: str, crop: Crop, prompt: Prompt) -> float:
        """Return how much it likes an option."""
        return not crop.blank and not crop.change and self.known.get(prompt.words()) == option


class Looker(Planted):
    """Sees a finding with some chance, and with some chance one that is not there."""

    answers_alone = True

    def __init__(self, world: World, hit: float = 1.0, false: float = 0.0) -> None:
        """Take the world, and the rates at which it is right and wrong."""
        super().__init__(world)
        self.hit, self.false = hit, false

    def liking(self, option: str, crop: Crop, prompt: Prompt) -> float:
        """Return how much it likes an option."""
        draw = random.Random(f"{crop.volume.path.split(' without ')[0]}/{option}").random()
        if crop.blank or crop.change == "scrambled":
            return False
        return draw < (self.hit if option in self.seen(crop) else self.false)


class Contrary(Looker):
    """Avoids what it sees."""

    def liking(self, option: str, crop: Crop, prompt: Prompt) -> float:
        """Return how much it likes an option."""
        return not super().liking(option, crop, prompt)


NEVER = (TextOnly, HeaderOnly, Histogram, Company, Memory, KeyReader, SwapDetector, Hearsay, Startled)


def audited(
    policy: Policy, world: World, training: World, *, conditions: Iterable[dict[str, Any]] | None = None,
    seed: int = 0, prompts: Sequence[Prompt] | None = None, blind_arm: Policy | None = None,
) -> PolicyAuditResult:  # fmt: skip
    """Audit a planted policy over a world."""
    table = {"use": "policy"} | ({} if conditions is None else {"conditions": conditions})
    audit = factory.build("audit", table, given={}, where="test")
    asking = dataclasses.replace(ASKING, seed=seed, dataset=world)
    return audit(
        policy, world.prompts() if prompts is None else prompts, world.task, EVALUATION, training.prompts,
        asking, "choice", blind_arm,
    )  # fmt: skip
