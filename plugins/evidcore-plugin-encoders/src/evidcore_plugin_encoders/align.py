"""Stage `align`: the bridge learns to put the words of findings among a volume's tokens, before any answer.

A fresh bridge gives tokens that no layer of a published language model attends to, and so neither side has a
gradient worth following. Here its tokens are drawn to the language model's own embeddings of what is there,
without a pass of the language model, for

    score(text) = gain * (logsumexp over tokens of cosine(token, text) / 0.05 - log of their number) + bias

with binary cross-entropy. Both sides of the cosine are taken from the vocabulary's mean; a text is the mean
embedding of its tokens. `gain` and `bias` are learned and thrown away. Processes share the cases of a step.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from jaxtyping import Bool, Float
from sklearn.metrics import roc_auc_score
from torch import Tensor, distributed, nn
from torch.nn import functional

from evidcore.api import Bridge, Case, DataError, Stage, StageContext, StageResult, VisualPart, Workload
from evidcore.compute.loading import share_of_peak
from evidcore.compute.processes import processes
from evidcore.model import assemble
from evidcore.text.tags import has_words
from evidcore_plugin_encoders.encoder_targets import finding_names

TEMPERATURE = 0.05
RARE = -3.0  # the bias that scores begin with: most texts are true of few volumes
LOG_EVERY_STEPS = 10
SMALL = 1e-3  # the least spread of a channel that is divided by
Words = Float[Tensor, "text width"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Align(Stage):
    """Draw the bridge's tokens to words of what is there, without a pass of the language model."""

    steps: Annotated[int, Ge(1)] = 300
    cases_per_step: Annotated[int, Ge(2)] = 32
    learning_rate: Annotated[float, Gt(0)] = 1e-3  # at its peak, of AdamW
    texts: Literal["findings", "sentences"] = "findings"  # names of findings, or sentences of reports

    traits = dataclasses.replace(
        Stage.traits, needs_tasks=False, trains=True, validates=True, is_distributed=True
    )

    @property
    def output(self) -> str:
        """Return "model": the bridge's weights stand in it."""
        return "model"

    @classmethod
    def problems(cls, table: Mapping[str, Any], at: Any, around: Any) -> Any:
        """Yield that a language model without weights has no words to be drawn to."""
        if "language" not in around.has_weights:
            yield (
                at,
                "the language model has no weights, so its words mean nothing. Fit model.language above.",
            )
        around.has_weights.add("bridge")

    def workload(self) -> Workload:
        text = f"{self.steps} steps of {self.cases_per_step} cases"
        summary = f"`align` of bridge to {self.texts} of {self.data[0].dataset}: {text}"
        return Workload(text=text, summary=summary, train=("bridge",), steps=self.steps)

    def run(self, context: StageContext) -> StageResult:
        """Train on the cases of the data entries; measure on the validation cases of their data sets."""
        model, processor = context.model()
        vocabulary = model.get_input_embeddings().weight.detach().float()
        aligning = Aligning(model, processor, context.view, vocabulary)
        train = [case for use in self.data for case in context.cases(use)]
        names = dict.fromkeys(use.dataset for use in self.data)
        validation = [case for name in names for case in context.split(name, "validation")]
        with torch.random.fork_rng():
            torch.manual_seed(context.recipe.seed)
            figures = aligning.fit(self, train, validation, context.announce.step_finished)
        if processes().is_first:
            assemble.save(model, processor, context.folder / "checkpoint")
        return StageResult(figures=figures)


class Aligning:
    """A model whose bridge is aligned."""

    def __init__(
        self, model: Any, processor: Any, view: Any, vocabulary: Float[Tensor, "word width"]
    ) -> None:
        """Take the model; `vocabulary` are its input embeddings."""
        self.model, self.processor, self.view = model, processor, view
        self.vocabulary, self.mean = vocabulary, vocabulary.mean(0)
        self.gain = nn.Parameter(torch.ones((), device=vocabulary.device))
        self.bias = nn.Parameter(torch.full_like(self.gain, RARE))

    def words(self, texts: Sequence[str]) -> Words:
        """Return the direction of each text, of length 1."""
        ids = [self.processor.tokenizer(f" {text}", add_special_tokens=False).input_ids for text in texts]
        means = torch.stack([self.vocabulary[item].mean(0) for item in ids])
        return functional.normalize(means - self.mean, dim=-1)

    def scores(self, cases: Sequence[Case], words: Words) -> Float[Tensor, "case text"]:
        """Return the logits of each text for each case, over all that the view shows of it."""
        images = self.processor.image_processor
        rendered = (self.view.render(case) for case in cases)
        crops = [[part.crop for part in parts if isinstance(part, VisualPart)] for parts in rendered]
        handles = torch.tensor([images.handle(crop) for some in crops for crop in some])[:, None]
        encoded = iter(self.model.get_image_features(handles.to(words.device)).pooler_output)
        result = []
        for some in crops:
            tokens = torch.cat([next(encoded) for _ in some])[:, : len(self.mean)].float()
            cosines = functional.normalize(tokens - self.mean, dim=-1) @ words.T
            result.append((cosines / TEMPERATURE).logsumexp(0) - math.log(len(tokens)))
        return self.gain * torch.stack(result) + self.bias

    @torch.no_grad()
    def standardise(self, cases: Sequence[Case], words: Words) -> None:
        """Set the norm of the bridge's input so that over `cases` each channel has mean 0 and variance 1.

        What a published encoder gives has channels of very unequal size, and the largest are much the same
        in all volumes: without this a bridge may learn nothing in hundreds of steps.

        Source:
            Krähenbühl et al. 2016, Data-dependent initializations of convolutional neural networks.
        """
        inner = self.model.model
        norms = (item for item in inner.bridge.modules() if isinstance(item, nn.LayerNorm))
        norm = next((item for item in norms if item.normalized_shape == (inner.encoder.width,)), None)
        is_published = type(inner.bridge).load_from is not Bridge.load_from  # its weights fit its encoder
        if norm is None or is_published:
            return
        given: list[Tensor] = []
        hook = norm.register_forward_hook(lambda _, inputs, output: given.append(output.flatten(0, -2)))
        self.scores(cases, words)
        hook.remove()
        spread, mean = torch.std_mean(torch.cat(given).float(), dim=0)
        norm.weight.div_(spread.clamp(min=SMALL))
        norm.bias.sub_(mean).div_(spread.clamp(min=SMALL))

    def fit(
        self, keys: Align, train: Sequence[Case], validation: Sequence[Case], log: Any
    ) -> dict[str, float]:
        """Train the bridge, and return what it tells of the validation cases' findings.

        Raises:
            DataError: if there are fewer cases than a step takes, or they lack what tokens are drawn to.
        """
        if len(train) < keys.cases_per_step:
            raise DataError(
                f"align: {len(train)} training cases, but a step takes cases_per_step = "
                f"{keys.cases_per_step}. Give more cases or take fewer per step."
            )
        mine, many = processes().block(keys.cases_per_step), processes().count
        if keys.cases_per_step < many:
            text = f"align: {many} processes cannot share cases_per_step = {keys.cases_per_step} cases"
            raise DataError(f"{text}. Take more cases per step, or fewer processes.")
        names, by_names = finding_names(train), keys.texts == "findings"
        silent = [] if by_names else [case.id for case in train if not _sentences(case)]
        if silent:
            raise DataError(
                f"align: {len(silent)} of {len(train)} cases have no report, the first is {silent[0]}. Leave "
                'them out, or write texts = "findings".'
            )
        if by_names and not names:
            text = "align: no case says anything about a finding. Take cases that do"
            raise DataError(f'{text}, or write texts = "sentences".')
        words = self.words(names) if by_names else None  # the vocabulary stays as it is
        self.standardise(train[: keys.cases_per_step], self.words(names or ["finding"]))
        self.model.train_only(("bridge",))
        bridge = self.model.model.bridge.train()
        groups: list[dict[str, Any]] = [
            {"params": list(bridge.parameters()), "peak": keys.learning_rate},
            {"params": [self.gain, self.bias], "peak": 10 * keys.learning_rate},
        ]
        optimizer = torch.optim.AdamW(groups, lr=keys.learning_rate, betas=(0.9, 0.98))
        count, size = len(train), keys.cases_per_step
        order = [row for _ in range(1 + keys.steps * size // count) for row in torch.randperm(count).tolist()]
        for step in range(keys.steps):
            batch = [train[row] for row in order[step * size : (step + 1) * size]]
            texts, truth, known = _targets(batch, names if by_names else None)
            logits = self.scores(batch[mine], self.words(texts) if words is None else words)
            losses = functional.binary_cross_entropy_with_logits(
                logits, truth[mine].to(logits), reduction="none"
            )
            loss = losses[known[mine]].sum() / known.sum().clamp(min=1)
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * share_of_peak(step, keys.steps)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            learned = [weight for group in groups for weight in group["params"] if weight.grad is not None]
            for part in (loss.detach(), *(weight.grad for weight in learned)) if many > 1 else ():
                distributed.all_reduce(part)
            nn.utils.clip_grad_norm_(bridge.parameters(), 1.0)
            optimizer.step()
            if (step + 1) % LOG_EVERY_STEPS == 0 or step + 1 == keys.steps:
                log(step + 1, {"loss": float(loss.detach())})
        self.model.train_only(())
        self.model.eval()
        return {"steps": float(keys.steps), "loss": float(loss.detach()), **self._measured(validation, names)}

    @torch.no_grad()
    def _measured(self, cases: Sequence[Case], names: Sequence[str]) -> dict[str, float]:
        """Return mean and lowest AUC of the scores of findings' names that have cases of both kinds."""
        if not cases or not names:
            return {}
        words, mine = self.words(names), cases[processes().block(len(cases))]
        parts = [self.scores(mine[start : start + 32], words) for start in range(0, len(mine), 32)]
        shares = processes().gather([part.cpu().numpy() for part in parts])
        if not shares:
            return {}
        scores = np.concatenate([part for share in shares for part in share])
        _, truth, known = (np.asarray(item) for item in _targets(cases, names))
        auc = [
            float(roc_auc_score(truth[known[:, place], place], scores[known[:, place], place]))
            for place in range(len(names))
            if len(np.unique(truth[known[:, place], place])) == 2
        ]
        return {"validation_auc": sum(auc) / len(auc), "validation_auc_min": min(auc)} if auc else {}


def _targets(
    cases: Sequence[Case], names: Sequence[str] | None
) -> tuple[Sequence[str], Bool[Tensor, "case text"], Bool[Tensor, "case text"]]:
    """Return texts, of which cases each is true, and of which that is known; without names, of sentences."""
    if names is None:
        each = [_sentences(case) for case in cases]
        texts = list(dict.fromkeys(text for some in each for text in some))
        truth = torch.tensor([[text in some for text in texts] for some in each])
        return texts, truth, torch.ones_like(truth)
    states = [[case.state_of(name) for name in names] for case in cases]
    truth = torch.tensor([[state == "present" for state in row] for row in states])
    return names, truth, truth | torch.tensor([[state == "absent" for state in row] for row in states])


def _sentences(case: Case) -> list[str]:
    """Return the sentences of a case's report that have words."""
    parts = re.split(r"(?<=[.!?;])\s+|\n+", case.report.text if case.report else "")
    return [part.strip() for part in parts if has_words(part)]
