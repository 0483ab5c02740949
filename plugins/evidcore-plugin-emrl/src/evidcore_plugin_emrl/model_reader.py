"""Readers `model-reader` and `policy-reader`: a vision-language model, or the policy, asked about crops."""

import functools
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from evidcore.api import Case, DataError, Policy, Prompt, Reader, TextPart, VisualPart
from evidcore.compute.loading import device_of
from evidcore.contracts import ImageQuestion
from evidcore.errors import NotDownloadedError
from evidcore.model import assemble
from evidcore.model.language import Pretrained
from evidcore.model.parts import build_encoder
from evidcore.model.policy import VLMPolicy
from evidcore.model.vlm import VolumeVLMConfig

NATIVE = MappingProxyType({"use": "published-vision"})
MERGER = MappingProxyType({"use": "published-tokens"})
SLICES = MappingProxyType({"use": "slices"})


class ModelReader(Reader):
    """Ask a model what crops show: one that `evid export` or a stage wrote, or a published one.

    Of a published model its own vision tower and merger see the crops. The model never meets the case: it is
    shown the crops and asked the question, and writes the likeliest words. Empty words are no answer.
    """

    deterministic: ClassVar[bool] = True
    audit_exemption = "a vision-language model reads every crop"

    def __init__(
        self,
        recipe_folder: Path = Path(),
        *,
        folder: str = "",
        id: str = "",
        revision: str = "",
        encoder: dict[str, Any] = dict(NATIVE),  # noqa: B006 (read only)
        instruction: str = "",
        max_new_tokens: Annotated[int, Ge(1)] = 64,
        device: str = "auto",
    ) -> None:
        """Name the model: exactly one of `folder` and `id`; nothing is read yet.

        Args:
            recipe_folder: where a relative `folder` starts.
            folder: one that `save_pretrained`, a stage or `evid export` wrote.
            id: a model on the Hugging Face Hub, with a `revision`.
            revision: its commit.
            encoder: table of the encoder that a published model's vision tower is read into.
            instruction: stands below each question, such as the form of the answer.
            max_new_tokens: of an answer.
            device: "auto" is the accelerator where there is one, else the CPU.

        Raises:
            ValueError: if the model is named twice, not at all, or without its commit.
        """
        table = {"folder": folder, "id": id, "revision": revision}
        if wrong := next(iter(Pretrained.problems(table)), None):
            raise ValueError(f"model-reader: {' '.join(part for part in wrong if part)}")
        self._source = Pretrained(recipe_folder, **table)
        self._encoder, self._device = encoder, device
        self._instruction, self._max_new_tokens = instruction, max_new_tokens

    def ready(self) -> None:
        """Look for the weights; none are loaded."""
        if self._source.folder and not (Path(self._source.folder) / "config.json").is_file():
            remedy = "Name a folder that save_pretrained or `evid export` wrote."
            raise DataError(f"model-reader: {self._source.folder!r} holds no config.json. {remedy}")
        if missing := self._source.missing_weights():
            raise NotDownloadedError(f"model-reader: {missing}")

    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        """Ask the model, equal questions once."""
        return self._reader(questions)

    @functools.cached_property
    def _reader(self) -> "PolicyReader":
        """Load the model; nothing of it is trained."""
        self.ready()
        device = device_of(self._device, "model-reader")
        if self._source.folder and isinstance(self._source.vision(), VolumeVLMConfig):
            model, processor = assemble.load(Path(self._source.folder))
        else:
            language, tokenizer = self._source.load()
            seeing = build_encoder(self._encoder, assemble.vision_of(language.config))
            seeing.load_from(language)
            model, processor = assemble.assemble(
                language, tokenizer, seeing, encoder_table=self._encoder, bridge_table=MERGER,
                view_table=SLICES,
            )  # fmt: skip
        policy, most = VLMPolicy(model.to(device), processor), self._max_new_tokens
        return PolicyReader(policy, policy, instruction=self._instruction, max_new_tokens=most)


class PolicyReader(Reader):
    """Ask the policy what crops show, greedily; it is told neither case nor report.

    A reader that learns with the policy may come to say what pays: `at = "start"` stays as it was.

    Args:
        at: "now", with the weights of the step; "start", with those that the stage began with, which are
            held in memory beside them.
        instruction: stands below each question, such as the form of the answer.
        max_new_tokens: of an answer.
    """

    deterministic: ClassVar[bool] = True
    audit_exemption = "the model that is trained reads every slice"

    def __init__(
        self,
        policy: Policy,
        start_policy: Policy,
        *,
        at: Literal["now", "start"] = "now",
        instruction: str = "",
        max_new_tokens: Annotated[int, Ge(1)] = 64,
    ) -> None:
        self._policy = policy if at == "now" else start_policy
        self._instruction = instruction
        self._max_new_tokens = max_new_tokens

    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        """Ask the model, equal questions once; empty words are no answer."""
        asked: dict[ImageQuestion, Prompt] = {}
        for question in questions:
            case = Case(id="asked", patient=None, volumes=tuple(crop.volume for crop in question.crops))
            text = f"{question.text}\n{self._instruction}" if self._instruction else question.text
            shown = [VisualPart(crop=crop) for crop in question.crops]
            asked[question] = Prompt(id="asked", case=case, task="asked", parts=(*shown, TextPart(text=text)))
        said = self._policy.generate(list(asked.values()), max_new_tokens=self._max_new_tokens)
        answers = {question: text.strip() or None for question, text in zip(asked, said, strict=True)}
        return [answers[question] for question in questions]
