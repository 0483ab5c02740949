"""Stand-ins for what this package asks, real and tiny: a chat endpoint, a reward model, a text encoder."""

import contextlib
import dataclasses
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from evidcore_testing import SPECIAL_TOKENS, tiny_tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server does with one request."""

    content: str | None = None  # of the model's message
    status: int = 200
    finish: str = "stop"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes | None = None  # in place of a chat completion
    after_s: float = 0.0
    cut: bool = False  # close the connection halfway through the answer


@dataclasses.dataclass(frozen=True)
class ChatServer:
    """A running server: its address, and what it was asked."""

    url: str
    requests: list[dict[str, Any]]  # bodies, in order
    headers: list[dict[str, str]]
    begun_s: list[float]  # monotonic time of each request


@contextlib.contextmanager
def chat_server(reply: Callable[[dict[str, Any], int], Reply], port: int = 0) -> Iterator[ChatServer]:
    """Serve on this machine until the block ends.

    Args:
        reply: from a request's body and its number, counted from 0, to the answer; called in many threads.
        port: 0: a free one.
    """
    lock = threading.Lock()
    asked: list[dict[str, Any]] = []
    headers: list[dict[str, str]] = []
    begun_s: list[float] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
            with lock:
                number = len(asked)
                asked.append(body)
                headers.append({**dict(self.headers), "method": self.command, "path": self.path})
                begun_s.append(time.monotonic())
            answer = reply(body, number)
            time.sleep(answer.after_s)
            choice = {"message": {"role": "assistant", "content": answer.content}}
            completion = {"choices": [{**choice, "finish_reason": answer.finish}]}
            content = json.dumps(completion).encode() if answer.body is None else answer.body
            with contextlib.suppress(OSError):  # the client may have gone
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if answer.cut else content)
                self.wfile.flush()
            self.close_connection = self.close_connection or answer.cut

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            """Stay quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield ChatServer(f"http://127.0.0.1:{server.server_port}/v1", asked, headers, begun_s)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def tiny_reward_model(folder: Path, seed: int = 0, *, labels: int = 1) -> Path:
    """Write a two-layer Mistral that classifies sequences, as RM-Mistral-7B is laid out; return its folder.

    Weights are ten times the usual ones, so that texts differ in their scores.
    """
    from transformers import MistralConfig, MistralForSequenceClassification

    tokenizer = tiny_tokenizer()
    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, sliding_window=None,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        num_labels=labels,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = MistralForSequenceClassification(config)
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(10)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_text_encoder(folder: Path, *, places: int = 64, seed: int = 0) -> Path:
    """Write a two-layer BERT with random weights that reads bytes as a transformers folder; return it.

    It reads at most `places` tokens at once, the two special ones among them.
    """
    from tokenizers import processors
    from transformers import BertConfig, BertModel

    tokenizer = tiny_tokenizer()
    first, last = SPECIAL_TOKENS[1:3]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in (first, last)],
    )
    tokenizer.model_max_length = places
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=places, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
