"""Can every finding of the chest phantoms be read off the frozen encoder? Each seed is its own population.

python benchmarks/phantom_encoder.py --seeds 17 18 19        about 4 minutes a seed on 2 CPU cores
python benchmarks/phantom_encoder.py --supervision contrastive

Prints seconds for drawing and training, and for each finding the area under the ROC curve on test cases of
- a linear probe on maximum and mean of the features (fitted on the training cases), and
- the single patch that a linear probe of patches finds most suspicious.
Then a blind rule on the test questions: how often the option that is right most often wins.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidcore_plugin_encoders.encoder_fit import EncoderFit, encode
from evidcore_plugin_encoders.encoder_targets import SEEN_FRACTION, read_targets
from evidcore_plugin_encoders.objectives import pooled
from evidcore_plugin_encoders.vit3d import ViT3D
from evidcore_plugin_phantoms.chest import PhantomChest
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from evidcore.api import Case
from evidcore.cache import cache_folder
from evidcore.contracts import FitData

Array = np.ndarray[Any, np.dtype[Any]]
PATCH_CASES = 600  # training cases whose patches the patch probe learns from
CLEAN_PATCHES = 20_000


def measure(seed: int, steps: int, supervision: tuple[Any, ...], folder: Path) -> dict[str, Any]:
    """Draw a population, train an encoder on it and probe the frozen features."""
    began = time.perf_counter()
    dataset = PhantomChest(cache_folder(), seed=seed)
    train, validation, test = (list(dataset.cases(split)) for split in ("train", "validation", "test"))
    drawn = time.perf_counter()
    torch.manual_seed(seed)
    encoder = ViT3D()
    options = EncoderFit(steps=steps, supervision=supervision)
    encoder.fit(FitData(train, validation, folder / str(seed), seed, lambda figures: None), options=options)
    trained = time.perf_counter()
    learn_zones, learn_patches, learn_seen, learn = features(encoder, train, PATCH_CASES)
    judge_zones, judge_patches, _, judge = features(encoder, test, len(test))
    rows: list[dict[str, Any]] = []
    for index, name in enumerate(CT_RATE_FINDINGS):
        whole = probe(learn_zones, learn[:, index]).decision_function(judge_zones)
        sample = patch_sample(learn_seen[:, index], seed)
        patch = probe(learn_patches[sample], learn_seen[sample, index]).decision_function(judge_patches)
        best = patch.reshape(len(test), -1).max(axis=1)
        truth = judge[:, index]
        rows.append({
            "finding": name,
            "probe": round(float(roc_auc_score(truth, whole)), 3),
            "best_patch": round(float(roc_auc_score(truth, best)), 3),
        })
    return {
        "seed": seed,
        "draw_s": round(drawn - began),
        "train_s": round(trained - drawn),
        "lowest_probe": min(row["probe"] for row in rows),
        "lowest_best_patch": min(row["best_patch"] for row in rows),
        "prior_only": round(prior_only(test), 3),
        "questions": sum(len(case.questions) for case in test),
        "rows": rows,
    }


def features(encoder: ViT3D, cases: Sequence[Case], patch_cases: int) -> tuple[Array, Array, Array, Array]:
    """Return pooled features, patch features, which patches show which finding, and the labels."""
    known = read_targets(cases, encoder, CT_RATE_FINDINGS, masks=True)
    grid = encoder.grid(encoder.input.size_zyx)
    zones: list[torch.Tensor] = []
    patches: list[torch.Tensor] = []
    for _, part in encode(encoder, known, len(cases)):
        zones.append(pooled(part, grid)[:, 0])
        if sum(len(kept) for kept in patches) < patch_cases:
            patches.append(part)
    kept = torch.cat(patches)[:patch_cases]
    seen = known.patches[: len(kept)].transpose(1, 2) >= SEEN_FRACTION * 255
    return (
        torch.cat(zones).numpy(),
        kept.flatten(0, 1).numpy(),
        seen.flatten(0, 1).numpy(),
        known.findings.numpy() == 1,
    )


def patch_sample(seen: Array, seed: int) -> Array:
    """Return rows of all patches that show a finding and of some that do not."""
    clean = np.random.default_rng(seed).choice(np.flatnonzero(~seen), CLEAN_PATCHES, replace=False)
    return np.concatenate([np.flatnonzero(seen), clean])


def probe(rows: Array, truth: Array) -> Any:
    """Fit a logistic regression."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=500)).fit(rows, truth)


def prior_only(cases: Sequence[Case]) -> float:
    """Return how often the offered option that is right most often, over these very questions, is right."""
    questions = [question for case in cases for question in case.questions]
    offered = Counter(option for question in questions for option in question.options)
    right = Counter(question.options[question.answer] for question in questions)
    guesses = [max(question.options, key=lambda item: right[item] / offered[item]) for question in questions]
    return float(np.mean([guess == q.options[q.answer] for guess, q in zip(guesses, questions, strict=True)]))


def main() -> None:
    """Measure each seed and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[17, 18, 19])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--supervision", nargs="+", default=["labels", "zones", "masks"])
    parser.add_argument("--folder", type=Path, default=Path("runs/phantom-encoder"))
    asked = parser.parse_args()
    for seed in asked.seeds:
        result = measure(seed, asked.steps, tuple(asked.supervision), asked.folder)
        for row in result["rows"]:
            print(f"{row['finding']:36s} probe {row['probe']:.3f}   best patch {row['best_patch']:.3f}")
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
