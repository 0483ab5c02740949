"""A world of scans of which planted policies write reports, each in its own way, and audits of them.

As in benchmarks/planted.py a scan is a path, and what can be read from it is looked up.
"""

import dataclasses
import random
from collections.abc import Collection, Iterable, Sequence

from evidcore.api import Case, Dataset, EvalOptions, Finding, Policy, Prompt, Report, TextPart, VolumeRef
from evidcore.audit.policy import PolicyAuditResult
from evidcore.builtin.views import Volume
from evidcore.registry import factory

NAMES = (
    "emphysema", "lung nodule", "cardiomegaly", "hiatal hernia", "atelectasis", "consolidation", "goitre",
    "pleural effusion", "pneumothorax", "fibrosis", "bronchiectasis", "lymphadenopathy", "calcification",
    "gallstones", "cyst", "scoliosis", "rib fracture", "aneurysm",
)  # fmt: skip
LABELER = {"use": "negation-rules", "findings": list(NAMES)}
EVALUATION = factory.build("evaluation", {"use": "report", "labeler": LABELER}, given={}, where="test")
TASK = factory.build("task", {"use": "report"}, given={}, where="test")


class World(Dataset):
    """Patients of two kinds, which scans tell, each with its prevalences; words tell a fifth of it."""

    def __init__(self, patients: int, seed: int) -> None:
        """Draw patients."""
        rng = random.Random(f"reports/{seed}")
        self.kind: dict[str, int] = {}
        self.shows: dict[str, set[str]] = {}
        self.words: dict[str, str] = {}
        self._cases: list[Case] = []
        for number in range(patients):
            path, kind = f"{seed}-{number}.nii", rng.randrange(2)
            chances = [0.17 + (0.12 if index % 2 == kind else -0.12) for index in range(len(NAMES))]
            present = [name for name, chance in zip(NAMES, chances, strict=True) if rng.random() < chance]
            findings = tuple(
                Finding(name=name, state="present" if name in present else "absent") for name in NAMES
            )
            self.kind[path], self.shows[path] = kind, {*present}
            case = Case(
                id=f"c{seed}-{number}", patient=f"p{seed}-{number}", findings=findings,
                volumes=(VolumeRef(path=path),), report=Report(text=report(present)),
            )  # fmt: skip
            self.words[case.id] = "known: " + ", ".join(name for name in present if rng.random() < 0.2)
            self._cases.append(case)

    def cases(self, split: str) -> list[Case]:
        """Return all, whatever the split."""
        return self._cases

    def fingerprint(self) -> str:
        """Return a name."""
        return "world"

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...] | None:
        """Return the scan of the same patient without a finding."""
        (ref,) = case.volumes
        twin = dataclasses.replace(ref, path=f"{ref.path} without {finding}")
        self.shows[twin.path] = self.shows[ref.path] - {finding}
        self.kind[twin.path] = self.kind[ref.path]
        return (twin,)

    def prompts(self) -> list[Prompt]:
        """Return the questions, with their words."""
        asked = [prompt for case in self._cases for prompt in TASK.prompts(case, Volume(), 0)]
        return [
            dataclasses.replace(prompt, parts=(*prompt.parts, TextPart(text=self.words[prompt.case.id])))
            for prompt in asked
        ]


def report(present: Iterable[str]) -> str:
    """Write a report."""
    return " ".join(f"There is {name}." for name in sorted(present)) or "No finding."


class Writer(Policy):
    """Writes what `affirmed` gives of the scan's path, whether it can be seen, and the words."""

    def __init__(self, world: World, training: World) -> None:
        """Take what it may know."""
        self.world, self.training = world, training

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        """Write a report of each."""
        texts = []
        for prompt in prompts:
            (crop,) = prompt.crops()
            is_odd = crop.blank or crop.change == "scrambled"
            said = self.affirmed(crop.volume.path, is_odd, prompt.words())
            texts.append(said if isinstance(said, str) else report(said))
        return texts

    def affirmed(self, path: str, is_odd: bool, words: str) -> Collection[str]:
        """Return the findings that it affirms, or what it writes."""
        raise NotImplementedError

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Compare nothing: reports are written."""
        raise NotImplementedError

    def draw(self, path: str, name: str) -> float:
        """Return a number of a scan and a finding that stays over its twins."""
        return random.Random(f"{path.split(' without ')[0]}/{name}").random()


class Constant(Writer):
    """Writes one report."""

    def affirmed(self, path: str, is_odd: bool, words: str) -> Collection[str]:
        """Return what it affirms."""
        return NAMES[:4]


class Words(Writer):
    """Repeats what the words tell."""

    def affirmed(self, path: str, is_odd: bool, words: str) -> Collection[str]:
        """Return what it affirms."""
        return [name for name in NAMES if name in words]


class Prevalence(Writer):
    """Affirms each finding as often as training has it."""

    def affirmed(self, path: str, is_odd: bool, words: str) -> Collection[str]:
        """Return what it affirms."""
        return [name for name in NAMES if self.draw(path, name) < 0.17]


class Cue(Writer):
    """Knows the kind of patient by the scan, and what such patients have; the words tell more."""

    def affirmed(self, path: str, is_odd: bool, words: str) -> Collection[str]:
        """Return what it affirms."""
        kind = (
            [] if is_odd else [name for index, name in enumerate(NAMES) if index % 2 == self.world.kind[path]]
        )
        return {*kind, *(name for name in NAMES if name in words)}


class Declines(Words):
    """Repeats the words, and writes nothing where pixels are odd."""

    def affirmed(self, path: str, is_odd: bool, words: str) -> Collection[str]:
        """Return what it affirms."""
        return "This scan cannot be read." if is_odd else super().affirmed(path, is_odd, words)


class Memory(Writer):
    """Knows the scans of the test by heart, also under noise; of others it tells what is frequent."""

    def affirmed(self, path: str, is_odd: bool, words: str) -> Collection[str]:
        """Return what it affirms."""
        known = {case.volumes[0].path for case in self.world.cases("test")}
        return NAMES[:2] if is_odd or path not in known else self.world.shows[path]


class EditNoticer(Memory):
    """Knows the scans of the test by heart, and writes of none that were edited."""

    def affirmed(self, path: str, is_odd: bool, words: str) -> Collection[str]:
        """Return what it affirms."""
        return "No finding." if " without " in path else super().affirmed(path, is_odd, words)


class Looker(Writer):
    """Sees twelve of eighteen findings, mostly; the others it affirms as often as they are there."""

    def affirmed(self, path: str, is_odd: bool, words: str) -> Collection[str]:
        """Return what it affirms."""
        seen = set() if is_odd else self.world.shows[path]
        rates = [(0.85 if name in seen else 0.04) if name in SEEN else 0.17 for name in NAMES]
        return [name for name, rate in zip(NAMES, rates, strict=True) if self.draw(path, name) < rate]


SEEN = frozenset(NAMES[:12])
NEVER = (Constant, Words, Prevalence, Cue, Declines, Memory, EditNoticer)


def audited(policy: type[Writer], seed: int, patients: int = 150) -> tuple[PolicyAuditResult, dict[str, str]]:
    """Audit a policy of planted reports; return the result, and how each finding is told."""
    world, training = World(patients, seed), World(400, 1_000_000)
    audit = factory.build("audit", {"use": "policy"}, given={}, where="test")
    asking = EvalOptions(max_new_tokens=64, seed=seed, dataset=world)
    result = audit(
        policy(world, training), world.prompts(), TASK, EVALUATION, training.prompts, asking, "report"
    )
    rows = [row for row in result.rows() if row.metric.startswith("own_minus_twin/")]
    kinds = {row.metric.partition("/")[2]: row.extra["claim"] for row in rows}
    return result, kinds
