"""A small server on this machine that speaks vLLM's protocol, over a real model of transformers.

It stands where vLLM is not to be had. Each token is one pass over the whole row, without a cache, so what it
samples is what the model says. It reads embeddings, token ids and pictures, loads adapters by peft and reads
its weights again, as vLLM does with the flags that are arguments here.
"""

import base64
import contextlib
import io
import json
import threading
import types
from pathlib import Path

import numpy as np
import torch
from evidcore_plugin_reports.testing import Reply, chat_server
from peft import PeftModel
from PIL import Image
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

NAME = "policy"  # by which the model is served


@contextlib.contextmanager
def protocol_server(folder, *, spoil=None, port=0, **flags):
    """Serve a model's folder until the block ends; give the address, and the path and body of each request.

    Args:
        folder: of a causal language model, or of a Qwen-VL.
        spoil: makes faults, from a path and its right answer; may be replaced while it runs.
        port: of this machine; 0: a free one.
        flags: of `Served`.
    """
    served = Served(folder, **flags)
    running = types.SimpleNamespace(requests=[], spoil=spoil)

    def reply(body, number):
        path = chat.headers[number]["path"]
        running.requests.append((path, body))
        answer = served.answer(chat.headers[number]["method"], path, body)
        if running.spoil is not None and isinstance(answer, dict):
            answer = running.spoil(path, answer)
        return answer if isinstance(answer, Reply) else Reply(body=json.dumps(answer).encode())

    with chat_server(reply, port) as chat:
        running.url = chat.url.removesuffix("/v1")
        yield running


class Served:
    """The model, its adapters, and what requests make of them.

    Args:
        folder: as above.
        allows_adapters: as with VLLM_ALLOW_RUNTIME_LORA_UPDATING and --enable-lora.
        dev_mode: as with VLLM_SERVER_DEV_MODE.
        processed: as with --logprobs-mode processed_logprobs; else as without.
    """

    def __init__(self, folder, *, allows_adapters=True, dev_mode=True, processed=True):
        self.folder, self.processed, self.adapters = folder, processed, {}
        self.lock = threading.Lock()  # adapters are switched in the one model
        self.read()
        self.answers = {"/v1/completions": self.complete, "/inference/v1/generate": self.generate}
        self.updates = {}
        if self.sees:
            self.answers["/v1/chat/completions/render"] = self.render
        if allows_adapters:
            self.updates |= {"/v1/load_lora_adapter": self.load, "/v1/unload_lora_adapter": self.unload}
        if dev_mode:
            self.updates |= {"/collective_rpc": self.call, "/reset_prefix_cache": lambda body: {}}

    def read(self):
        """Read the weights from the folder."""
        self.sees = getattr(AutoConfig.from_pretrained(self.folder), "vision_config", None) is not None
        kind = AutoModelForImageTextToText if self.sees else AutoModelForCausalLM
        self.model = kind.from_pretrained(self.folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)

    def answer(self, method, path, body):
        """Answer a request, with JSON or a status."""
        names = (NAME, *self.adapters)
        if (method, path) == ("GET", "/v1/models"):
            return {"object": "list", "data": [{"id": name} for name in names]}
        if path in self.updates:
            return self.updates[path](body)
        if body.get("model") not in names or path not in self.answers:
            return Reply(status=404, body=b"")
        return self.answers[path](body)

    def call(self, body):
        """Read the weights again, the one call that is known."""
        if body["method"] != "reload_weights":
            return Reply(status=400, body=b"")
        self.read()
        return {"results": [None]}

    def load(self, body):
        name, folder = body["lora_name"], body["lora_path"]
        if name in self.adapters or not Path(folder, "adapter_config.json").is_file():
            return Reply(status=400, body=b"")
        self.adapters[name] = folder
        return {}

    def unload(self, body):
        del self.adapters[body["lora_name"]]
        return {}

    def complete(self, body):
        """Continue embeddings, or token ids."""
        with self.adapted(body["model"]) as model:
            embed = model.get_input_embeddings()
            if "prompt_embeds" in body:
                start = torch.load(io.BytesIO(base64.b64decode(body["prompt_embeds"])), weights_only=True)
            else:
                start = embed(torch.tensor(body["prompt"]))
            assert start.ndim == 2

            def score(written):
                row = torch.cat([start, embed(torch.tensor(written, dtype=torch.long))])
                return model(inputs_embeds=row[None]).logits[0, -1]

            rows = [self.row(score, body, number) for number in range(body.get("n", 1))]
        choices = [
            {
                "index": number, "text": self.tokenizer.decode(ids), "finish_reason": finish,
                "token_ids": ids if body.get("return_token_ids") else None,
                "logprobs": {"token_logprobs": log_probs},
            }
            for number, (ids, log_probs, finish) in enumerate(rows)
        ]  # fmt: skip
        return {"model": body["model"], "choices": choices, "usage": {"prompt_tokens": len(start)}}

    def render(self, body):
        """Prepare a picture as Qwen-VL reads it."""
        (shown,) = body["messages"][0]["content"]
        png = base64.b64decode(shown["image_url"]["url"].partition("base64,")[2])
        config = self.model.config.vision_config
        prepare = Qwen2VLImageProcessorPil(patch_size=config.patch_size, merge_size=config.spatial_merge_size)
        made = prepare([Image.open(io.BytesIO(png))], return_tensors="np")
        file = io.BytesIO()
        np.savez(file, pixel_values=made["pixel_values"], image_grid_thw=made["image_grid_thw"])
        count = int(made["image_grid_thw"].prod()) // config.spatial_merge_size**2
        return {
            "token_ids": [1, 2, *[self.model.config.image_token_id] * count, 3],
            "features": {
                "mm_hashes": {"image": [str(hash(png))]},
                "mm_placeholders": {"image": [{"offset": 2, "length": count}]},
                "kwargs_data": {"image": [base64.b64encode(file.getvalue()).decode()]},
            },
        }

    def generate(self, body):
        """Continue token ids with prepared pictures among them."""
        settings, features, shown = body["sampling_params"], body["features"], {}
        image = self.model.config.image_token_id
        if features is not None:
            items = [np.load(io.BytesIO(base64.b64decode(item))) for item in features["kwargs_data"]["image"]]
            for name in ("pixel_values", "image_grid_thw"):
                shown[name] = torch.from_numpy(np.concatenate([item[name] for item in items]))
            for place in features["mm_placeholders"]["image"]:
                stop = place["offset"] + place["length"]
                assert set(body["token_ids"][place["offset"] : stop]) == {image}
                assert body["token_ids"][stop] != image
        with self.adapted(body["model"]) as model:

            def score(written):
                ids = torch.tensor([[*body["token_ids"], *written]])
                return model(input_ids=ids, mm_token_type_ids=(ids == image).long(), **shown).logits[0, -1]

            rows = [self.row(score, settings, number) for number in range(settings["n"])]
        choices = []
        for number, (ids, log_probs, finish) in enumerate(rows):
            pairs = zip(ids, log_probs, strict=True)
            content = [{"token": f"token_id:{item}", "logprob": value} for item, value in pairs]
            told = {"index": number, "token_ids": ids, "finish_reason": finish}
            choices.append({**told, "logprobs": {"content": content}})
        return {"choices": choices, "usage": {"prompt_tokens": len(body["token_ids"])}}

    @contextlib.contextmanager
    def adapted(self, name):
        """Give the model, with an adapter of that name in it."""
        with self.lock, torch.no_grad():
            if name == NAME:
                yield self.model
                return
            adapted = PeftModel.from_pretrained(self.model, self.adapters[name]).eval()
            try:
                yield adapted.get_base_model()
            finally:
                self.model = adapted.unload()

    def row(self, score, settings, number):
        """Sample a row; return its tokens, their log-probabilities and why it ended."""
        generator = torch.Generator().manual_seed(settings.get("seed", 0) + number)
        temperature, allowed = settings["temperature"], settings.get("allowed_token_ids")
        ids, log_probs = [], []
        while len(ids) < settings["max_tokens"]:
            logits = score(ids).float()
            raw = logits.log_softmax(-1)
            for token, bias in (settings.get("logit_bias") or {}).items():
                logits[int(token)] += bias
            if allowed:
                others = torch.full_like(logits, -torch.inf)
                logits = others.index_copy(0, torch.tensor(allowed), logits[allowed])
            chances = (logits / (temperature or 1.0)).log_softmax(-1)
            if temperature == 0:
                token = int(chances.argmax())
            else:
                token = int(torch.multinomial(chances.exp(), 1, generator=generator))
            ids.append(token)
            log_probs.append(float((chances if self.processed else raw)[token]))
            written = self.tokenizer.decode(ids, skip_special_tokens=settings["skip_special_tokens"])
            if token in settings["stop_token_ids"] or any(text in written for text in settings["stop"]):
                return ids, log_probs, "stop"
        return ids, log_probs, "length"
