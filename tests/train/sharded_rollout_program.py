"""Answers of unequal lengths and turns under FSDP2, as one of two gloo processes, and what each found."""

import json
import sys
from pathlib import Path

import torch
from evidcore_plugin_encoders.testing import tiny_vlm
from evidcore_testing.data import volume_case
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers.utils import logging

from evidcore.api import Crop, Episode, Prompt, TextPart, VisualPart
from evidcore.model.policy import sampling_of
from evidcore.train.sampler import PolicySampler
from evidcore.train.trl.stage import FullEncoderCallback, full_weights


def answers(model, processor, prompts, rank):
    """Write long answers with a tool's turn in the first process, short ones without in the second."""
    sampling = sampling_of(model, processor, max_new_tokens=(24, 3)[rank], temperature=1.0)
    positions = {id(prompt): number for number, prompt in enumerate(prompts)}
    sampler = PolicySampler(model, processor, sampling, positions, seed=rank)
    episodes = sampler.sample([Episode(prompt=prompt) for prompt in prompts for _ in range(3)])
    if rank == 0:
        said = [TextPart(text="look here"), VisualPart(crop=prompts[1].crops()[0])]
        more = [sampler.extend(item, said) for item in episodes[:2]]
        sampling = sampling_of(model, processor, max_new_tokens=40, temperature=0.0)
        episodes += PolicySampler(model, processor, sampling, positions, seed=7).sample(more)
    scores = sampler.score(episodes)
    return [list(item.ids) for item in episodes], [list(item) for item in scores]


def step(model, processor, prompt):
    """Return the loss of a question's tokens, and leave its gradient."""
    encoded = processor.encode(prompt)
    handles = [[processor.image_processor.handle(crop)] for crop in encoded.crops]
    ids = torch.tensor([encoded.ids])
    labels = ids.masked_fill(ids == processor.image_token_id, -100)
    loss = model(input_ids=ids, labels=labels, pixel_values=torch.tensor(handles)).loss
    loss.backward()
    return loss.item()


def main(language: str, folder: str) -> None:
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    distributed.init_process_group("gloo")
    rank, mesh = distributed.get_rank(), init_device_mesh("cpu", (distributed.get_world_size(),))
    model, processor = tiny_vlm(Path(language), sharpness=3.0)
    model.eval()
    cases = [volume_case(Path(folder) / str(rank), seed) for seed in range(2)]
    prompts = []
    for case, text in zip(cases, ("What is there?", "Where is it, and how large?"), strict=True):
        parts = (VisualPart(crop=Crop(volume=case.volumes[0])), TextPart(text=text))
        prompts.append(Prompt(id=case.id, case=case, task="test", parts=parts))
    whole = answers(model, processor, prompts, rank)
    model.train_only(("bridge", "language"))
    loss = step(model, processor, prompts[0])
    weights = dict(model.named_parameters())
    gradients = {name: weight.grad.clone() for name, weight in weights.items() if weight.requires_grad}
    model.zero_grad()
    for layer in model.model.language_model.layers:
        fully_shard(layer, mesh=mesh)
    for part in (model.model.encoder, model.model.bridge, model):
        fully_shard(part, mesh=mesh)
    FullEncoderCallback().on_train_begin(model=model)
    with full_weights(model):
        sharded = answers(model, processor, prompts, rank)
    result = {"ids": [whole[0], sharded[0]], "scores": [whole[1], sharded[1]]}
    result["loss"] = [loss, step(model, processor, prompts[0])]
    furthest, is_sharded = 0.0, True
    for name, weight in model.named_parameters():
        # the frozen encoder stays whole, all else does not
        is_sharded &= isinstance(weight, DTensor) != name.startswith("model.encoder.")
        if weight.requires_grad:
            mean = gradients[name]
            distributed.all_reduce(mean)
            away = weight.grad.full_tensor() - mean / distributed.get_world_size()
            furthest = max(furthest, away.abs().max().item())
    result |= {"is_sharded": is_sharded, "gradient_off_by": furthest}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
