"""Sampler `vllm`: rollouts that a vLLM server writes, with the weights that are trained here.

Before each step's answers:

1. the first time, the server is asked whether it serves `model` and gives log-probabilities as sampled;
2. the weights reach the server: a stage with `lora` writes its adapter to `weights` and has it loaded under
   the name of its hash; another writes the whole model there and has it read again;
3. the server writes a few tokens, which are scored here: other weights than these are noticed.

Then rows are continued: by embeddings that are computed here, or by token ids and pictures. The trainer
corrects for what the server's arithmetic differs by, as `trl` says (`vllm_importance_sampling_mode` and its
bounds).
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
from accelerate import PartialState
from annotated_types import Ge, Gt, Le
from evidcore_plugin_reports.http_exchange import check_key_env, host_of
from peft.tuners.lora import LoraLayer

from evidcore.api import Engine, RolloutStrategy, Workload
from evidcore.contracts import Rows
from evidcore.errors import RecipeError, RunError
from evidcore.model.policy import sampling_of
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore_plugin_vllm.rows import FORBIDDEN, ServedRows, biases
from evidcore_plugin_vllm.server import Server
from evidcore_plugin_vllm.weights import (
    Inputs,
    adapter_tensors,
    check_model,
    digest,
    lora_layers,
    trained_tensors,
    write_adapter,
    write_whole,
)

CERTAIN = 1e-3  # in nats, of the log-probability of a token without another
COMPARED_TOKENS = 8
MOST_OFF = 0.3  # nats a token; half precision and other kernels make some hundredths


class Vllm(Engine):
    """A vLLM server writes the answers; docs/howto/vllm.md says how it is started.

    Args:
        url: of the server, without `/v1`.
        model: the name by which it serves the model that a stage starts from.
        weights: a folder that the server sees at the same path; a relative one starts where `evid` runs.
            Adapters are written into it; without `lora` it is the model's folder, and the server must be
            started from it. What the server needs to begin with lies there after a run that did not find it.
        inputs: "embeddings": prompts are embedded here, images and all, and decoded there; "images": token
            ids and pictures, for a vision-language model as it was published.
        sends_images_away: must be true: what patients' scans show and what is asked of them is sent to `url`,
            as pictures or as embeddings, also where that is an address of this machine.
        key_env: the environment variable that holds the server's key, empty where it has none;
            `<key_env>_HOST` says to which host it may go.
        timeout_s: for one whole answer.
        concurrent: how many requests may be under way at once.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        weights: str,
        inputs: Inputs = "embeddings",
        sends_images_away: bool = False,
        key_env: str = "",
        timeout_s: Annotated[float, Gt(0)] = 600.0,
        concurrent: Annotated[int, Ge(1), Le(64)] = 8,
    ) -> None:
        host = host_of(url, "sampler.url")
        check_key_env(key_env, "sampler.key_env")
        if not sends_images_away:
            raise RecipeError(
                f"sampler: images and questions would be sent to {host!r}, and the recipe does not allow "
                "it. If those whose scans these are agree, write: sends_images_away = true"
            )
        self.server = Server(url, key_env, timeout_s)
        self.model, self.inputs, self.concurrent = model, inputs, concurrent
        # not from the recipe's folder: what lies there and is named counts in the hash of the stage
        self.weights = Path(weights)
        self._given = ""  # hash of the weights that the server has
        self._adapter = ""  # the one that it has
        self._is_known = False

    def refusals(self, workload: Workload, strategy: RolloutStrategy) -> Sequence[str]:
        """Say what a server cannot be asked for, or what of the model would not reach it."""
        result = list(super().refusals(workload, strategy))
        seeing = [part for part in workload.train if part != "language"]
        if self.inputs == "images" and workload.lora is not None and seeing:
            result.append(
                f"train names {' and '.join(seeing)}, which no served adapter holds; with inputs = "
                "'images' the server sees by its own. Leave them out, or lora."
            )
        if workload.lora is not None and workload.lora.use_dora:
            result.append("vLLM serves no adapter of DoRA. Take lora.use_dora out.")
        return result

    def begin(self, model: VolumeVLM, processor: VolumeProcessor, stop_texts: Sequence[str]) -> Rows:
        check_model(model, self.inputs)
        state, layers = PartialState(), lora_layers(model)
        tensors = adapter_tensors(layers, self.inputs) if layers else trained_tensors(model, self.inputs)
        name = digest(tensors)
        served = f"evidcore-{name}" if layers else self.model
        if state.is_main_process and name != self._given:
            if layers:
                self._know_base(model, processor, layers)
                write_adapter(layers, tensors, self.weights / served)
                self._swap(served)
            else:
                write_whole(model, processor, self.weights, self.inputs)
                self._know(processor)
                self.server.reload()  # through a folder: NCCL needs one world with the server
            self._compare(model, processor, served)  # a reload that does nothing raises no error
        self._given = name
        state.wait_for_everyone()
        return ServedRows(
            self.server, served, model, processor, stop_texts,
            shows=self.inputs == "images", concurrent=self.concurrent,
        )  # fmt: skip

    def _know_base(
        self, model: VolumeVLM, processor: VolumeProcessor, layers: Mapping[str, LoraLayer]
    ) -> None:
        """Look once whether the server has the model beneath the adapters; else lay that down for it."""
        if self._is_known:
            return
        for layer in layers.values():
            layer.enable_adapters(False)
        try:
            self._know(processor)
            self._compare(model, processor, self.model)
        except RunError:
            self._is_known = False
            if self.inputs == "embeddings":
                write_whole(model, processor, self.weights, self.inputs)
            raise
        finally:
            for layer in layers.values():
                layer.enable_adapters(True)

    def _compare(self, model: VolumeVLM, processor: VolumeProcessor, served: str) -> None:
        """Let the server write a few tokens and score them here."""
        ids = processor.tokenizer("The scan shows", add_special_tokens=False)["input_ids"]
        sampling = sampling_of(model, processor, max_new_tokens=COMPARED_TOKENS, temperature=1.0)
        result = self.server.write(served, ids, COMPARED_TOKENS, logit_bias=biases(sampling))
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*ids, *result.ids]], device=model.device)).logits[0]
        logits[:, list(sampling.forbidden_ids)] += FORBIDDEN
        log_probs = logits[len(ids) - 1 : -1].float().log_softmax(-1)
        own = log_probs.gather(-1, torch.tensor(result.ids, device=model.device)[:, None])[:, 0].cpu()
        off = float((own - torch.tensor(result.log_probs)).abs().mean())
        if off > MOST_OFF:
            raise RunError(
                f"{self.server}: {served!r} gives its own tokens log-probabilities that are {off:.2f} nats "
                f"from those of the model that is trained, at most {MOST_OFF:g} is arithmetic. Start it "
                f"from {self.weights}, or from the weights that the stage starts with."
            )

    def _swap(self, name: str) -> None:
        """Have the server load an adapter, and forget the one before."""
        if name not in self.server.models():  # a run that goes on may have left it there
            self.server.load_adapter(name, str((self.weights / name).resolve()))
        if self._adapter:
            self.server.unload_adapter(self._adapter)
            shutil.rmtree(self.weights / self._adapter)
        self._adapter = name

    def _know(self, processor: VolumeProcessor) -> None:
        """Ask the server, once, whether it is the one that is meant."""
        if self._is_known:
            return
        names = self.server.models()
        if self.model not in names:
            raise RunError(
                f"{self.server}: it serves {', '.join(map(repr, names)) or 'nothing'}, not {self.model!r}. "
                f"Start it with --served-model-name {self.model}, or correct model."
            )
        end = [processor.tokenizer.eos_token_id]
        (given,) = self.server.write(self.model, end, 1, allowed_token_ids=end).log_probs
        if abs(given) > CERTAIN:
            raise RunError(
                f"{self.server}: a token that alone could be sampled has log-probability {given:.3f} there, "
                "expected 0: those before temperature and limits are given. Start it with --logprobs-mode "
                "processed_logprobs."
            )
        self._is_known = True
