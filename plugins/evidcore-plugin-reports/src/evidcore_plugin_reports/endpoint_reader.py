"""Reader `endpoint-reader`: a vision-language model behind an endpoint is asked about crops."""

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le
from PIL import Image

from evidcore.api import Crop, DataError, EncoderInput, Reader, prepare
from evidcore.contracts import ImageQuestion
from evidcore.data import read_geometry
from evidcore_plugin_reports.endpoint import ChatClient, Conversation, Endpoint, Unanswered

ABDOMEN = (-160.0, 240.0)  # low, high in HU
INSTRUCTION = "Answer from these pictures alone, in short sentences that each name one finding."


class EndpointReader(Reader):
    """Ask a model behind an endpoint what crops show: a grey PNG for each axial slice, then the question.

    What is sent holds pixels and the question: no path, no id, no height, no report. Pixels are square, and
    the longer side of a slice has `longest_px` of them. Equal questions are asked once and kept on the disk,
    so that a repeated question has its first answer, whatever the endpoint's own dice say. Where the endpoint
    gives one question no answer (too long, refused, cut off) there is none.

    Args:
        endpoint: which model is asked; needs `sends_images_away = true`.
        instruction: what it is told before the question.
        window: (low, high) in HU, black and white; () scales values of arbitrary intensity by percentiles.
        longest_px: pixels of a picture's longer side.
        most_slices: of a crop; one that shows more is refused.
    """

    deterministic: ClassVar[bool] = True
    audit_exemption = "a model behind an endpoint reads every crop"

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        instruction: str = INSTRUCTION,
        window: tuple[float, ...] = ABDOMEN,
        longest_px: Annotated[int, Ge(32), Le(2048)] = 512,
        most_slices: Annotated[int, Ge(1)] = 16,
    ) -> None:
        if len(window) not in (0, 2) or (window and not window[0] < window[1]):
            raise ValueError(f"endpoint-reader: window must be low, then high in HU, got {list(window)}")
        self.client = ChatClient(endpoint, sends="images")
        self._instruction = instruction
        self._windows = ((window[0], window[1]),) if window else ()
        self._longest_px = longest_px
        self._most_slices = most_slices

    def ready(self) -> None:
        self.client.authorization()

    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        """Ask all questions, several at once.

        Raises:
            DataError: if a crop shows more slices than `most_slices`, or its file cannot be used.
            RunError: if the endpoint cannot be used at all.
        """
        asked = {question: self._conversation(question) for question in questions}
        answers = dict(zip(asked, self.client.ask(list(asked.values())), strict=True))
        said = (answers[question] for question in questions)
        return [None if isinstance(answer, Unanswered) else answer.strip() or None for answer in said]

    def _conversation(self, question: ImageQuestion) -> Conversation:
        images = []
        for picture in (one for crop in question.crops for one in self._pictures(crop)):
            buffer = io.BytesIO()
            Image.fromarray(picture).save(buffer, format="PNG")
            url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
            images.append({"type": "image_url", "image_url": {"url": url}})
        return [
            {"role": "system", "content": self._instruction},
            {"role": "user", "content": [*images, {"type": "text", "text": question.text}]},
        ]

    def _pictures(self, crop: Crop) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
        geometry = read_geometry(crop.volume)
        if crop.drawing is not None and crop.drawing.kind != "picture":
            raise DataError(
                f"{crop.volume.path}: endpoint-reader sends slices, and what is drawn of them is "
                f"{crop.drawing.mark()!r}. Ask about the slices, or use view = {{ use = 'slices' }}."
            )
        z0, z1, y0, y1, x0, x1 = geometry.box_of(crop)
        if z1 - z0 > self._most_slices:
            raise DataError(
                f"{crop.volume.path}: a crop of {z1 - z0} slices is asked about, and endpoint-reader sends "
                f"at most {self._most_slices} pictures of one. Ask about fewer, or raise most_slices."
            )
        sides_mm = (y1 - y0) * geometry.spacing_mm_zyx[1], (x1 - x0) * geometry.spacing_mm_zyx[2]
        height, width = (max(1, round(self._longest_px * side / max(sides_mm))) for side in sides_mm)
        size = (z1 - z0, height, width)
        spec = EncoderInput(size_zyx=size, spacing_mm_zyx=None, windows=self._windows, any_depth=True)
        grey = (prepare(crop, spec)[0].numpy() + 1) * 127.5
        yield from np.rint(grey).astype(np.uint8)
