"""A step of full training under FSDP2, as one of several gloo processes; says what became of the anchor."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from evidcore.model import assemble


def main(model_folder: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    model, _ = assemble.load(Path(model_folder))
    model.train_only(("encoder", "bridge", "language"))
    bridge, words = model.model.bridge, model.get_input_embeddings().weight
    anchor, words = bridge.anchor.clone(), words.detach().clone()
    count = bridge.tokens(model.model.encoder.grid((8, 16, 16)))
    shown = torch.full((1, count), model.config.image_token_id)
    ids = torch.arange(24).reshape(1, -1) % 90 + 6
    batch = {
        "input_ids": torch.cat([shown, ids], dim=1),
        "labels": torch.cat([torch.full_like(shown, -100), ids], dim=1),
        "pixel_values": torch.zeros(1, 3, 8, 16, 16),
    }
    with torch.no_grad():
        whole = model(**batch).loss.item()
    for layer in model.model.language_model.layers:
        fully_shard(layer, mesh=mesh)
    for part in (model.model.encoder, bridge, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    moved = model.get_input_embeddings().weight
    state = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True)
    )  # on the first process
    result = {
        "loss": loss.item(), "loss_of_the_whole_model": whole, "is_sharded": hasattr(moved, "full_tensor"),
        "embeddings_moved": float((moved.full_tensor() - words).abs().max()),
        "anchor_is_equal": torch.equal(bridge.anchor, anchor), "anchor": bridge.anchor.tolist(),
    }  # fmt: skip
    if rank == 0:
        result["saved_anchor_is_equal"] = torch.equal(state["model.bridge.anchor"], anchor)
    Path(out, f"{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
