"""Rows of one step, continued by a server: what is sent for them, and who gets which answer."""

import base64
import dataclasses
import io
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from evidcore.api import prepare
from evidcore.contracts import Continuation, Prefix, Sampling
from evidcore.errors import RunError
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore_plugin_vllm.server import Server, Shown

FORBIDDEN = -100.0  # the least that vLLM adds to a logit
Asked = Callable[[], list[Continuation]]


@dataclasses.dataclass(eq=False)
class ServedRows:
    """Continues rows with the weights that the server was given last.

    Equal prefixes go in one request, which is answered as often as there are rows; its seed is that of the
    first of them. A prefix is whole each time: what a row has written, tools' turns and the beginning of a
    fork are read again, from the server's prefix cache where it has one.
    """

    server: Server
    served: str  # name of the model or adapter
    model: VolumeVLM  # whose embeddings are sent
    processor: VolumeProcessor
    stop_texts: Sequence[str]  # rows pause behind one
    _: dataclasses.KW_ONLY
    shows: bool  # token ids and pictures are sent, no embeddings
    concurrent: int  # how many requests may be under way at once
    _shown: dict[int, Shown] = dataclasses.field(default_factory=dict)  # by the bank's handle

    def __call__(
        self, prefixes: Sequence[Prefix], sampling: Sampling, *, seeds: Sequence[int], entropies: bool = False
    ) -> list[Continuation]:
        """Continue each prefix to an end token, a stop text or `max_new_tokens`.

        Raises:
            RunError: if the server does not do its part; what it says names the fault.
        """
        if entropies:
            what = "a server gives no entropies of tokens"
            raise RunError(f"sampler vllm: {what}. Use the sampler 'in-process'.")
        groups: dict[Prefix, list[int]] = {}
        for row, prefix in enumerate(prefixes):
            groups.setdefault(prefix, []).append(row)
        futures: list[Future[list[Continuation]]] = []
        slots = threading.BoundedSemaphore(self.concurrent)  # bounds what is held to be sent, too
        with ThreadPoolExecutor(self.concurrent, thread_name_prefix="vllm") as pool:
            for prefix, rows in groups.items():
                slots.acquire()
                if any(item.done() and item.exception() for item in futures):
                    break  # what failed is raised below
                ask = self._asked(prefix, sampling, seeds[rows[0]], len(rows))
                futures.append(pool.submit(ask))
                futures[-1].add_done_callback(lambda _: slots.release())
            given = [item.result() for item in futures]
        results: dict[int, Continuation] = {}
        for rows, answers in zip(groups.values(), given, strict=True):
            results.update(zip(rows, answers * (len(rows) // len(answers)), strict=True))
        return [results[row] for row in range(len(prefixes))]

    def _asked(self, prefix: Prefix, sampling: Sampling, seed: int, rows: int) -> Asked:
        """Return what asks the server for `rows` continuations; a greedy one is asked for once."""
        settings = _settings(sampling, seed, rows if sampling.temperature > 0 else 1, self.stop_texts)
        body: dict[str, Any] = {"model": self.served}
        if self.shows:
            body |= {"token_ids": list(prefix.ids), "features": self._features(prefix)}  # a chat loses tokens
            body["sampling_params"] = settings
            return lambda: self.server.generate(body)
        body |= {"prompt_embeds": self._embeddings(prefix), "return_token_ids": True, **settings}
        return lambda: self.server.complete(body, len(prefix.ids))

    def _embeddings(self, prefix: Prefix) -> str:
        """Return (token, width) of a prefix, as vLLM reads a tensor: torch's file in base64."""
        device = self.model.device
        ids = torch.tensor([prefix.ids], device=device)
        pixels = torch.tensor(prefix.handles, device=device).reshape(-1, 1) if prefix.handles else None
        with torch.no_grad():
            embeds, _ = self.model.model.embed(ids, pixels)
        file = io.BytesIO()
        torch.save(embeds[0].detach().cpu().contiguous().clone(), file)
        return base64.b64encode(file.getvalue()).decode()

    def _features(self, prefix: Prefix) -> Mapping[str, Any] | None:
        """Return the pictures of a prefix and the places of their tokens in it; None without pictures."""
        if not prefix.handles:
            return None
        image, place = self.processor.image_token_id, 0
        shown, places = [self._picture(handle) for handle in prefix.handles], []
        for item in shown:
            place = prefix.ids.index(image, place)
            places.append({"offset": place, "length": item.tokens})
            place += item.tokens
        if prefix.ids.count(image) != sum(item.tokens for item in shown):
            raise RunError(
                f"{self.server}: pictures are {[item.tokens for item in shown]} tokens there and "
                f"{prefix.ids.count(image)} in all here. Set the server's limits of pixels so that it "
                "resizes none: --mm-processor-kwargs with min_pixels and max_pixels."
            )
        return {
            "mm_hashes": {"image": [item.digest for item in shown]},
            "mm_placeholders": {"image": places},
            "kwargs_data": {"image": [item.prepared for item in shown]},
        }

    def _picture(self, handle: int) -> Shown:
        """Return a picture as the server prepared it, once a step."""
        if handle not in self._shown:
            images = self.processor.image_processor
            assert images.bank is not None  # it gave the handle
            size = images.bank.size_zyx(handle)
            if size[0] != 1:
                raise RunError(
                    f"sampler vllm: a crop of {size[0]} slices cannot be shown as one picture. Take a view "
                    "that shows slices one by one, such as view = { use = 'slices' }."
                )
            volume = prepare(images.bank.crop(handle), images.parts()[0].input, size)
            self._shown[handle] = self.server.show(self.served, png(volume), self.processor.image_token_id)
        return self._shown[handle]


def _settings(sampling: Sampling, seed: int, rows: int, stop_texts: Sequence[str]) -> dict[str, Any]:
    """Return settings of sampling by vLLM's names, all of them: a model's own files may change others."""
    return {
        "n": rows,
        "seed": seed,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": biases(sampling),
        "stop": [*stop_texts],
        "stop_token_ids": list(sampling.end_ids),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "logprobs": 0,
    }


def biases(sampling: Sampling) -> dict[str, float]:
    """Return what is added to logits, by token, so that none that is forbidden is written."""
    return {str(item): FORBIDDEN for item in sampling.forbidden_ids}


def png(volume: Tensor) -> str:
    """Return a slice (channel, 1, y, x) on -1..1 as a PNG of 8 bits, in base64: grey, or three colours."""
    levels = ((volume[:, 0] + 1) / 2 * 255).round().clamp(0, 255).to(torch.uint8)
    picture = Image.fromarray(levels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()
