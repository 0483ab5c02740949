"""How often the policy audit is fooled over rendered scans: planted policies that read voxels and headers.

python benchmarks/rendered_policies.py --seeds 200       2 cores, about 60 minutes, no download
python benchmarks/rendered_policies.py --seeds 200 --keep docs/results/rendered_policies.json

One pool of chest phantoms is rendered, with findings that come in company and scanners that follow the
patient's type. Each audit draws its patients from it anew, three questions each, under the audit's own
conditions. Readers are logistic regressions of each finding, fitted on training patients: on the header, on
intensities without a place, on noise and table, on the other findings as labelled; the one that looks, on
voxels in place.
"""

import dataclasses
import functools
import hashlib
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import planted
import planted_rates
import torch
from evidcore_plugin_phantoms.chest import PhantomChest
from evidcore_plugin_phantoms.cues import Cues

from evidcore.api import Case, Crop, Dataset, EncoderInput, Prompt, VolumeRef, prepare
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.case import Split
from evidcore.data import read_geometry
from evidcore.evaluate.reference_lines import logistic

POOL = 600
TRAINING = 1200
QUESTIONS = 3
GRID = (16, 16, 16)
EYE = EncoderInput(size_zyx=(32, 64, 64), spacing_mm_zyx=None, windows=((-1000.0, 400.0),))
TASK = Choice(think=False, questions_per_case=QUESTIONS)
AIR = np.s_[:, :6, :6]  # z, y, x: a corner in front of the patient
TABLE = np.s_[:, 48:, 24:40]


class Scans:
    """The pool, its training patients, and what each reader takes from a showing."""

    task = TASK
    share = 1.0  # of the questions that the looker looks at

    def __init__(self, cache: Path, pool: int, training: int) -> None:
        """Draw chest phantoms with every cue."""
        dataset = PhantomChest(
            cache, train_cases=training, validation_cases=0, test_cases=pool, seed=29,
            cues=Cues(company=0.8, header_cue=0.9, device_cue=0.9, table_cue=0.9),
        )  # fmt: skip
        self.start(dataset, "test", list(dataset.cases("train")))

    def start(self, dataset: Dataset, split: Split, training: list[Case]) -> None:
        """Take the pool from a split, and what readers learn from."""
        self.dataset, self.training, self.pool = dataset, training, list(dataset.cases(split))
        self.read: dict[Crop, dict[str, np.ndarray[Any, Any]]] = {}
        self.fitted: dict[str, dict[str, Any]] = {}
        self.known: set[str] = set()
        self.shows: dict[str, set[str]] = {}  # by path, what is there

    def reading(self, crop: Crop) -> dict[str, np.ndarray[Any, Any]]:
        """Return each reader's features of a showing."""
        if crop not in self.read:
            voxels = prepare(crop, EYE)[0]
            small = torch.nn.functional.adaptive_avg_pool3d(voxels[None], GRID)[0].numpy()
            shown = voxels.numpy()
            header = np.array([*read_geometry(crop.volume).spacing_mm_zyx, 0.0])
            self.read[crop] = {
                "header": header,
                "histogram": np.quantile(shown, np.linspace(0.01, 0.99, 33)),
                "device": np.append(shown[TABLE].mean(axis=(0, 2)), shown[AIR].std()),
                "eye": small.ravel(),
                "content": np.frombuffer(hashlib.blake2b(shown.tobytes()).digest()[:8], np.uint8),
            }
        return self.read[crop]

    def fit(self) -> None:
        """Fit every reader on the training patients, and company on their labels."""
        crops = [_crop(case) for case in self.training]
        labels = {name: np.array([case.state_of(name) == "present" for case in self.training], np.int64)
                  for name in self.dataset.findings}  # fmt: skip
        for reader in ("header", "histogram", "device"):
            features = np.stack([self.reading(crop)[reader] for crop in crops])
            self.fitted[reader] = {name: logistic(features, label) for name, label in labels.items()}
        # Without perturbed scans, what an eye says changes when they move by a voxel.
        crops += [dataclasses.replace(crop, change="perturbed") for crop in crops]
        features = np.stack([self.reading(crop)["eye"] for crop in crops])
        self.fitted["eye"] = {
            name: logistic(features, np.tile(label, 2), strength=1e-4) for name, label in labels.items()
        }
        table = np.stack(list(labels.values()), axis=1).astype(float)
        self.prevalence = table.mean(axis=0)
        self.fitted["company"] = {
            name: logistic(np.delete(table, place, axis=1), labels[name]) for place, name in enumerate(labels)
        }
        self.read.clear()

    @functools.cache  # noqa: B019  # lives as long as the script
    def odds(self, reader: str, crop: Crop, name: str) -> float:
        """Return the log-odds that a reader gives a finding."""
        return float(self.fitted[reader][name].decision_function(self.reading(crop)[reader][None])[0])

    def render(self) -> None:
        """Read every showing that an audit can ask for, and what each reader says of it."""
        for number, case in enumerate(self.pool):
            crop = _crop(case)
            present = set(case.present())
            self.shows[crop.volume.path], twins = present, []
            for name in case.present():
                (twin,) = self.dataset.without(case, name)
                self.shows[twin.path] = present - {name}
                twins.append(twin)
            showings = [crop, Crop(volume=crop.volume, blank=True)]
            showings += [Crop(volume=crop.volume, change=change) for change in ("scrambled", "perturbed")]
            for shown in showings + [Crop(volume=twin) for twin in twins]:
                for reader in ("header", "histogram", "device", "eye"):
                    for name in self.dataset.findings:
                        self.odds(reader, shown, name)
                held = self.read[shown]
                for reader in ("histogram", "device", "eye"):
                    held.pop(reader, None)  # two scans may have one twin
            self.known.add(self.content(crop))
            if number % 100 == 99:
                print(f"rendered {number + 1} of {len(self.pool)}", file=sys.stderr, flush=True)

    @functools.cache  # noqa: B019
    def prompts(self) -> list[Prompt]:
        """Return the questions that blind rules learn from."""
        return [item for case in self.training[:400] for item in self.task.prompts(case, Volume(), 1)]

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...] | None:
        """Return the rendered twin."""
        return self.dataset.without(case, finding)

    def content(self, crop: Crop) -> str:
        """Return a hash of the voxels as shown."""
        return self.reading(crop)["content"].tobytes().hex()


def _crop(case: Case) -> Crop:
    (ref,) = case.volumes
    return Crop(volume=ref)


SCANS: Scans


class Reader(planted.Planted):
    """Takes the option that its reader finds likeliest."""

    reader = "eye"

    def letter(self, prompt: Prompt) -> str:
        """Return the likeliest option's letter."""
        lines = [line[3:] for line in prompt.words().splitlines() if line[1:3] == ") "]
        (crop,) = prompt.crops()
        liking = [self.liking(option, crop, lines) for option in lines]
        return "ABCD"[liking.index(max(liking))]

    def liking(self, option: str, crop: Crop, options: Sequence[str]) -> float:
        """Return the log-odds of an option."""
        return SCANS.odds(self.reader, crop, option)


class Header(Reader):
    """Reads the distance of slices."""

    reader = "header"


class Histogram(Reader):
    """Reads intensities without a place."""

    reader = "histogram"


class Device(Reader):
    """Reads the noise in the air and the height of the table."""

    reader = "device"


class Prior(Reader):
    """Takes the finding that was most common in training."""

    def liking(self, option: str, crop: Crop, options: Sequence[str]) -> float:
        """Return how common it was."""
        return float(SCANS.prevalence[SCANS.dataset.findings.index(option)])


class Company(Reader):
    """Knows every finding of a scan that is not asked about, and takes the option that goes with them."""

    def liking(self, option: str, crop: Crop, options: Sequence[str]) -> float:
        """Return the log-odds given the other findings."""
        shown = () if crop.blank or crop.change == "scrambled" else self.world[crop.volume.path]
        seen = [
            SCANS.prevalence[place] if name in options else float(name in shown)
            for place, name in enumerate(SCANS.dataset.findings)
        ]
        del seen[SCANS.dataset.findings.index(option)]
        return float(SCANS.fitted["company"][option].decision_function(np.array([seen]))[0])


class Memory(Prior):
    """Knows the pool's scans by their voxels and their answers by heart."""

    def liking(self, option: str, crop: Crop, options: Sequence[str]) -> float:
        """Return 1 for a finding of a scan that it knows."""
        if SCANS.content(crop) not in SCANS.known:
            return super().liking(option, crop, options) - 1.0
        return float(option in self.world[crop.volume.path])


class Looker(Prior):
    """Looks at some scans' voxels in their places, and answers for the others as the prior does."""

    def liking(self, option: str, crop: Crop, options: Sequence[str]) -> float:
        """Return the log-odds of an option, or how common it is."""
        if random.Random("".join(options)).random() < SCANS.share:
            return 100.0 + SCANS.odds("eye", crop, option)
        return super().liking(option, crop, options)


NEVER = (Prior, Header, Histogram, Device, Company, Memory, planted.KeyReader, planted.SwapDetector)


def told(policy: str, patients: int, seed: int) -> planted_rates.Told:
    """Return what the audit says of one policy on patients drawn from the pool, in a word."""
    cases = random.Random(f"pool/{seed}").sample(SCANS.pool, patients)
    prompts = [prompt for case in cases for prompt in SCANS.task.prompts(case, Volume(), seed + 1)]
    made = {item.__name__: item for item in (*NEVER, Looker)}
    audit = planted.audited(made[policy](SCANS.shows), SCANS, SCANS, seed=seed, prompts=prompts)
    return planted_rates.told_of(audit, "twin")


def main() -> None:
    """Render, fit, audit, print a line for each policy, and keep them where asked."""
    global SCANS
    parser = planted_rates.rendered_options(__doc__, pool=POOL, training=TRAINING, share=0.36)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        SCANS = Scans(asked.cache or Path(folder), asked.pool, asked.training)
        SCANS.share = asked.share
        SCANS.fit()
        SCANS.render()
        planted_rates.sweep(
            asked, "rendered_policies", [item.__name__ for item in NEVER], told, removed="twin",
            most=asked.pool, pool=asked.pool, training=asked.training, share=asked.share,
        )  # fmt: skip


if __name__ == "__main__":
    main()
