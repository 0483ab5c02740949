"""What is asked of a vLLM server, and what its answers must hold.

The paths are those of vLLM's own HTTP server. What it answers beside a status of 200 is never shown: it may
repeat what was sent.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore_plugin_reports import http_exchange

from evidcore.contracts import Continuation
from evidcore.errors import RunError

_MOST_BYTES = 256 * 2**20  # of one answer: prepared pixels of a picture among them
_GO_ON = "Type `evid resume` with the run's folder once it answers again."
Json = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Shown:
    """A picture as the server's own processor prepared it."""

    digest: str  # by which the server knows it
    tokens: int
    prepared: str  # as the server sends it, and takes it back


@dataclasses.dataclass(frozen=True)
class Server:
    """A vLLM server at an address."""

    url: str
    key_env: str
    timeout_s: float  # for one whole answer

    def models(self) -> Sequence[str]:
        """Return the names that it serves.

        Raises:
            RunError: if it is not there, or is no such server.
        """
        answer = self._asked("GET", "/v1/models", None)
        try:
            return [str(one["id"]) for one in answer["data"]]
        except (LookupError, TypeError) as cause:
            raise RunError(f"{self}: its /v1/models lists no models. Check url.") from cause

    def write(self, model: str, ids: Sequence[int], tokens: int, **more: Any) -> Continuation:
        """Continue token ids by so many tokens, whatever they are."""
        body = {
            "model": model, "prompt": list(ids), "n": 1, "max_tokens": tokens, "min_tokens": tokens,
            "stop": [], "stop_token_ids": [], "ignore_eos": True, "temperature": 1.0, "top_k": 0,
            "top_p": 1.0, "seed": 0, "logprobs": 0, "return_token_ids": True,
            "skip_special_tokens": False, **more,
        }  # fmt: skip
        return self.complete(body, len(ids))[0]

    def complete(self, body: Json, prompt_tokens: int) -> list[Continuation]:
        """Continue a prompt's embeddings as often as the body's `n` says; it must have been read whole."""
        answer = self._asked("POST", "/v1/completions", body)
        return self._continuations(answer, body, prompt_tokens)

    def generate(self, body: Json) -> list[Continuation]:
        """Continue token ids with pictures among them; settings of sampling lie in `sampling_params`."""
        answer = self._asked("POST", "/inference/v1/generate", body)
        return self._continuations(answer, body["sampling_params"], len(body["token_ids"]))

    def show(self, model: str, png: str, image_token: int) -> Shown:
        """Have the server prepare a picture, a PNG in base64; `image_token` stands for a part of it.

        Raises:
            RunError: if what comes back is no picture of that model.
        """
        shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}
        body = {"model": model, "messages": [{"role": "user", "content": [shown]}]}
        answer = self._asked("POST", "/v1/chat/completions/render", body)
        try:
            features = answer["features"]
            (digest,), (place,) = features["mm_hashes"]["image"], features["mm_placeholders"]["image"]
            (prepared,) = features["kwargs_data"]["image"]
            start, count = int(place["offset"]), int(place["length"])
            ids = answer["token_ids"][start : start + count]
        except (LookupError, TypeError, ValueError) as cause:
            raise RunError(
                f"{self}: /v1/chat/completions/render gave no prepared picture. inputs = 'images' needs a "
                "vLLM that gives `features` with `kwargs_data` there, and a model that sees."
            ) from cause
        if not isinstance(prepared, str) or set(ids) != {image_token}:
            raise RunError(
                f"{self}: the picture's place in the prompt holds tokens {sorted(set(ids))[:4]}, expected "
                f"{image_token} alone. The served model is not the one that is trained: check model."
            )
        return Shown(str(digest), count, prepared)

    def load_adapter(self, name: str, folder: str) -> None:
        """Have it load a LoRA adapter from a folder."""
        flags = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora with a --max-lora-rank that suffices"
        self._updated("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}, flags)

    def unload_adapter(self, name: str) -> None:
        """Have it forget an adapter."""
        flags = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora"
        self._updated("/v1/unload_lora_adapter", {"lora_name": name}, flags)

    def reload(self) -> None:
        """Have it read its weights again from the folder that it was started with; forget what they gave."""
        flags = "VLLM_SERVER_DEV_MODE=1"
        self._updated("/collective_rpc", {"method": "reload_weights"}, flags)
        self._updated("/reset_prefix_cache", {}, flags)

    def _updated(self, path: str, body: Json, flags: str) -> None:
        """Ask for an update of the weights."""
        answer = self._sent("POST", path, body)
        if answer.status != 200:
            raise RunError(
                f"{self}: {path} answered HTTP {answer.status}: it cannot be given the weights that are "
                f"trained. Start it with {flags}, where it can read the folder `weights`; see "
                "docs/howto/vllm.md."
            )

    def _asked(self, method: str, path: str, body: Json | None) -> Any:
        answer = self._sent(method, path, body)
        if answer.status != 200:
            hint = "Check key_env." if answer.status in (401, 403) else "See the server's own log."
            if answer.status == 404:
                hint = "Check url (without /v1) and model; this path may need a newer vLLM."
            raise RunError(f"{self}: {path} answered HTTP {answer.status}. {hint}")
        try:
            return json.loads(answer.content)
        except (ValueError, RecursionError) as cause:
            raise RunError(f"{self}: {path} answered what is no JSON. Check url.") from cause

    def _sent(self, method: str, path: str, body: Json | None) -> http_exchange.Answered:
        content = b"" if body is None else json.dumps(body).encode()
        client = http_exchange.opener(http_exchange.authorization(self.key_env, self.url, str(self)))
        try:
            address = f"{self.url.rstrip('/')}{path}"
            return http_exchange.exchange(
                client, method, address, content, timeout_s=self.timeout_s, most_bytes=_MOST_BYTES
            )
        except http_exchange.Interrupted as reason:
            raise RunError(f"{self}: {path} gave {reason}. Start it, or check url. {_GO_ON}") from reason
        except http_exchange.Unreadable as reason:
            raise RunError(f"{self}: {path}: {reason}.") from reason

    def _continuations(self, answer: Any, asked: Json, prompt_tokens: int) -> list[Continuation]:
        """Read what rows wrote."""
        rows, ends = asked["n"], asked["stop_token_ids"]
        try:
            choices = sorted(answer["choices"], key=lambda one: int(one["index"]))
            read = (answer.get("usage") or {}).get("prompt_tokens", prompt_tokens)
            written = [([int(one) for one in choice["token_ids"]], _log_probs(choice)) for choice in choices]
        except (LookupError, TypeError, ValueError, AttributeError) as cause:
            raise RunError(
                f"{self}: an answer has no token ids with log-probabilities ({type(cause).__name__}). It "
                "needs a vLLM that knows return_token_ids."
            ) from cause
        if read != prompt_tokens:
            raise RunError(
                f"{self}: it read a prompt of {read} tokens and was sent {prompt_tokens}. The served model "
                "is not the one that is trained: check model."
            )
        if len(written) != rows:
            raise RunError(f"{self}: it gave {len(written)} answers, {rows} were asked for.")
        for ids, log_probs in written:
            if not 0 < len(ids) <= asked["max_tokens"] or len(log_probs) != len(ids):
                raise RunError(
                    f"{self}: an answer has {len(ids)} tokens and {len(log_probs)} log-probabilities; "
                    f"expected as many of each, from 1 to {asked['max_tokens']}."
                )
            if wrong := [one for one in log_probs if not math.isfinite(one) or one > 1e-6]:
                raise RunError(
                    f"{self}: a token was sampled with log-probability {wrong[0]}, which none can have. Its "
                    "weights or its arithmetic are broken: see the server's own log."
                )
        return [Continuation(tuple(ids), tuple(log_probs), ids[-1] in ends) for ids, log_probs in written]

    def __str__(self) -> str:
        """Return what messages call it."""
        return f"vLLM server {self.url}"


def _log_probs(choice: Json) -> list[float]:
    """Return the log-probability of each token, as completions or chats give it; NaN where it is null."""
    given = choice["logprobs"]
    found = [one["logprob"] for one in given["content"]] if "content" in given else given["token_logprobs"]
    return [math.nan if one is None else float(one) for one in found]
