"""A small server on this machine that speaks vLLM's protocol, over a real model of transformers.

It stands where vLLM is not to be had. Each token is one pass over the whole row, without a cache, so what it
samples is what the model says. It reads embeddings, token ids and pictures, loads adapters by peft and reads
its weights again, as vLLM does with the flags that are arguments here.
"""

import base64
import contextlib
import dataclasses
import http.server
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from PIL import Image
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

Body = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spoilt:
    """What is answered in place of an answer."""

    status: int = 200
    content: bytes = b""
    after_s: float = 0.0


Spoil = Callable[[str, Body], Body | Spoilt]  # from a path and its right answer to what is answered


@dataclasses.dataclass
class ProtocolServer:
    """A running server: its address, and what it was asked."""

    url: str
    requests: list[tuple[str, Body]]  # path and body, in order
    spoil: Spoil | None = None


class _Refused(Exception):
    """An HTTP status that is not 200."""


class _Served:
    """The model, its adapters, and what requests make of them."""

    def __init__(
        self, folder: Path, name: str, allows_adapters: bool, dev_mode: bool, processed: bool
    ) -> None:
        self.folder, self.name = folder, name
        self.allows_adapters, self.dev_mode, self.processed = allows_adapters, dev_mode, processed
        self.adapters: dict[str, str] = {}
        self.lock = threading.Lock()  # adapters are switched in the one model
        self.read()

    def read(self) -> None:
        """Read the weights from the folder."""
        config = AutoConfig.from_pretrained(self.folder)
        self.sees = getattr(config, "vision_config", None) is not None
        kind = AutoModelForImageTextToText if self.sees else AutoModelForCausalLM
        self.model = kind.from_pretrained(self.folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)

    def answer(self, method: str, path: str, body: Body) -> Body:
        """Answer a request."""
        if (method, path) == ("GET", "/v1/models"):
            return {"object": "list", "data": [{"id": name} for name in (self.name, *self.adapters)]}
        if path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            return self._adapt(path, body)
        if path in ("/collective_rpc", "/reset_prefix_cache") and self.dev_mode:
            if path == "/collective_rpc":
                if body["method"] != "reload_weights":
                    raise _Refused(400)
                self.read()
            return {"results": [None]}
        if body.get("model") not in (self.name, *self.adapters):
            raise _Refused(404)
        if path == "/v1/completions":
            return self._complete(body)
        if path == "/v1/chat/completions/render" and self.sees:
            return self._render(body)
        if path == "/inference/v1/generate":
            return self._generate(body)
        raise _Refused(404)

    def _adapt(self, path: str, body: Body) -> Body:
        name = body["lora_name"]
        if not self.allows_adapters:
            raise _Refused(404)
        if path.endswith("unload_lora_adapter"):
            del self.adapters[name]
        elif name in self.adapters or not Path(body["lora_path"], "adapter_config.json").is_file():
            raise _Refused(400)
        else:
            self.adapters[name] = body["lora_path"]
        return {}

    def _complete(self, body: Body) -> Body:
        with self._with_adapter(body["model"]) as model:
            if "prompt_embeds" in body:
                file = io.BytesIO(base64.b64decode(body["prompt_embeds"]))
                start = torch.load(file, weights_only=True)
            else:
                start = model.get_input_embeddings()(torch.tensor(body["prompt"]))
            assert start.ndim == 2

            def score(written: list[int]) -> Tensor:
                own = model.get_input_embeddings()(torch.tensor(written, dtype=torch.long))
                return torch.as_tensor(model(inputs_embeds=torch.cat([start, own])[None]).logits[0, -1])

            rows = [self._row(score, body, number) for number in range(body.get("n", 1))]
        choices = [
            {
                "index": number, "text": self.tokenizer.decode(ids), "finish_reason": finish,
                "token_ids": ids if body.get("return_token_ids") else None,
                "logprobs": {"token_logprobs": log_probs},
            }
            for number, (ids, log_probs, finish) in enumerate(rows)
        ]  # fmt: skip
        return {"model": body["model"], "choices": choices, "usage": {"prompt_tokens": len(start)}}

    def _render(self, body: Body) -> Body:
        (shown,) = body["messages"][0]["content"]
        png = base64.b64decode(shown["image_url"]["url"].partition("base64,")[2])
        config = self.model.config.vision_config
        made = Qwen2VLImageProcessorPil(
            patch_size=config.patch_size, merge_size=config.spatial_merge_size
        )([Image.open(io.BytesIO(png))], return_tensors="np")  # fmt: skip
        file = io.BytesIO()
        np.savez(file, pixels=made["pixel_values"], grid=made["image_grid_thw"])
        count = int(made["image_grid_thw"].prod()) // config.spatial_merge_size**2
        prepared = base64.b64encode(file.getvalue()).decode()
        return {
            "token_ids": [1, 2, *[self.model.config.image_token_id] * count, 3],
            "features": {
                "mm_hashes": {"image": [str(hash(png))]},
                "mm_placeholders": {"image": [{"offset": 2, "length": count}]},
                "kwargs_data": {"image": [prepared]},
            },
        }

    def _generate(self, body: Body) -> Body:
        settings, features = body["sampling_params"], body["features"]
        shown: dict[str, Tensor] = {}
        if features is not None:
            kept = [np.load(io.BytesIO(base64.b64decode(item))) for item in features["kwargs_data"]["image"]]
            shown["pixel_values"] = torch.from_numpy(np.concatenate([item["pixels"] for item in kept]))
            shown["image_grid_thw"] = torch.from_numpy(np.concatenate([item["grid"] for item in kept]))
            image = self.model.config.image_token_id
            for place in features["mm_placeholders"]["image"]:
                stop = place["offset"] + place["length"]
                assert set(body["token_ids"][place["offset"] : stop]) == {image}
                assert body["token_ids"][stop] != image
        with self._with_adapter(body["model"]) as model:

            def score(written: list[int]) -> Tensor:
                ids = torch.tensor([[*body["token_ids"], *written]])
                kinds = (ids == self.model.config.image_token_id).long()
                return torch.as_tensor(model(input_ids=ids, mm_token_type_ids=kinds, **shown).logits[0, -1])

            rows = [self._row(score, settings, number) for number in range(settings["n"])]
        choices = [
            {
                "index": number, "token_ids": ids, "finish_reason": finish,
                "logprobs": {"content": [{"token": f"token_id:{item}", "logprob": value} for item, value in
                                         zip(ids, log_probs, strict=True)]},
            }
            for number, (ids, log_probs, finish) in enumerate(rows)
        ]  # fmt: skip
        return {"choices": choices, "usage": {"prompt_tokens": len(body["token_ids"])}}

    @contextlib.contextmanager
    def _with_adapter(self, name: str) -> Iterator[Any]:
        """Give the model, with an adapter of that name in it."""
        with self.lock, torch.no_grad():
            if name == self.name:
                yield self.model
                return
            adapted = PeftModel.from_pretrained(self.model, self.adapters[name]).eval()
            try:
                yield adapted.get_base_model()
            finally:
                self.model = adapted.unload()

    def _row(
        self, score: Callable[[list[int]], Tensor], settings: Mapping[str, Any], number: int
    ) -> tuple[list[int], list[float], str]:
        """Sample a row; return its tokens, their log-probabilities and why it ended."""
        generator = torch.Generator().manual_seed(settings.get("seed", 0) + number)
        temperature = settings["temperature"]
        ids: list[int] = []
        log_probs: list[float] = []
        while len(ids) < settings["max_tokens"]:
            logits = score(ids).float()
            raw = logits.log_softmax(-1)
            for token, bias in (settings.get("logit_bias") or {}).items():
                logits[int(token)] += bias
            if allowed := settings.get("allowed_token_ids"):
                logits = torch.full_like(logits, -torch.inf).index_copy(
                    0, torch.tensor(allowed), logits[allowed]
                )
            chances = (logits / (temperature or 1.0)).log_softmax(-1)
            token = int(chances.argmax()) if temperature == 0 else int(
                torch.multinomial(chances.exp(), 1, generator=generator))  # fmt: skip
            ids.append(token)
            log_probs.append(float((chances if self.processed else raw)[token]))
            written = self.tokenizer.decode(ids, skip_special_tokens=settings["skip_special_tokens"])
            if token in settings["stop_token_ids"] or any(text in written for text in settings["stop"]):
                return ids, log_probs, "stop"
        return ids, log_probs, "length"


@contextlib.contextmanager
def protocol_server(
    folder: Path,
    *,
    name: str = "policy",
    allows_adapters: bool = True,
    dev_mode: bool = True,
    processed: bool = True,
    port: int = 0,
    spoil: Spoil | None = None,
) -> Iterator[ProtocolServer]:
    """Serve a model's folder on a free port of this machine until the block ends.

    Args:
        folder: of a causal language model, or of a Qwen-VL.
        name: by which it is served.
        allows_adapters: as with VLLM_ALLOW_RUNTIME_LORA_UPDATING and --enable-lora.
        dev_mode: as with VLLM_SERVER_DEV_MODE.
        processed: as with --logprobs-mode processed_logprobs; else as without.
        port: of this machine; 0: a free one.
        spoil: makes faults; may be replaced while it runs.
    """
    served = _Served(folder, name, allows_adapters, dev_mode, processed)
    running = ProtocolServer("", [], spoil)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.loads(content) if content else {}
            running.requests.append((self.path, body))
            try:
                answer: Body | Spoilt = served.answer(self.command, self.path, body)
            except _Refused as status:
                answer = Spoilt(status=int(str(status)))
            if running.spoil is not None and isinstance(answer, dict):
                answer = running.spoil(self.path, answer)
            if isinstance(answer, dict):
                answer = Spoilt(content=json.dumps(answer).encode())
            time.sleep(answer.after_s)
            with contextlib.suppress(OSError):  # the client may have gone
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Stay quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    running.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
