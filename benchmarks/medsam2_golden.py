"""Store what MedSAM2's own code gives for calm seeded weights: what `medsam2` is held to in float32.

git clone https://github.com/bowang-lab/MedSAM2 && git -C MedSAM2 checkout 332f30d
python benchmarks/medsam2_golden.py MedSAM2 [--seeded] [--out FILE]
1 core, about 2 minutes

The predictor, its configuration and its way of propagating are those of the clone; of hydra and iopath, which
it imports, nothing is used here. `--seeded` takes the first weights: what it then prints is how far the
predictor on this processor lies from its own logits as they were stored on another.
"""

import argparse
import importlib
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml  # type: ignore[import-untyped]
from evidcore_plugin_medsam2.pixels import pixels
from evidcore_plugin_medsam2.weights import SIZE_PX, published_config
from medsam2_parity import CALM, DEPTH, GOLDEN, KEY, X0, X1, Y0, Y1, compare, phantom, prompts
from seeded import original_tensors, seeded_model

CONFIG = "sam2/configs/sam2.1_hiera_t512.yaml"
# as `build_sam2_video_predictor_npz` sets them; holes are filled by an extension for CUDA, which is not there
STABLE = {
    "dynamic_multimask_via_stability": True, "dynamic_multimask_stability_delta": 0.05,
    "dynamic_multimask_stability_thresh": 0.98,
}  # fmt: skip


def open_clone(clone: Path) -> None:
    """Let the clone's packages be imported, without what they run when they are."""
    for name in ("sam2", "efficient_track_anything", "iopath", "iopath.common", "iopath.common.file_io"):
        module: Any = types.ModuleType(name)
        module.__path__, module.g_pathmgr = [str(clone / name)], None
        sys.modules[name] = module


def built(node: Any) -> Any:
    """Return what a node of the configuration describes."""
    if isinstance(node, list):
        return [built(item) for item in node]
    if not isinstance(node, dict):
        return float(node) if node == "1e-6" else node  # YAML takes it for a word
    given = {key: built(value) for key, value in node.items() if key != "_target_"}
    if "_target_" not in node:
        return given
    module, _, name = node["_target_"].rpartition(".")
    return getattr(importlib.import_module(module), name)(**given)


def predictor(clone: Path) -> Any:
    """Return MedSAM2's predictor, without weights."""
    table = yaml.safe_load((clone / CONFIG).read_text(encoding="utf-8"))["model"]
    table |= {
        "_target_": "sam2.sam2_video_predictor_npz.SAM2VideoPredictorNPZ", "fill_hole_area": 0,
        "sam_mask_decoder_extra_args": STABLE, "binarize_mask_from_pts_for_mem_enc": True,
    }  # fmt: skip
    return built(table).eval()


def logits(model: Any, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the logits of a prompt, both ways from its slice, each from a new state as MedSAM2 does it."""
    seen = torch.stack([pixels(plane, SIZE_PX) for plane in phantom()])
    result: dict[int, Any] = {}
    for is_reversed in (False, True):
        state = model.init_state(seen, SIZE_PX, SIZE_PX)
        if name == "mask":
            model.add_new_mask(state, KEY, 1, torch.from_numpy(prompts()["mask"].mask))  # type: ignore[union-attr]
        else:
            model.add_new_points_or_box(state, KEY, 1, box=np.array([X0, Y0, X1, Y1], np.float32))
        for z, _, _ in model.propagate_in_video(state, start_frame_idx=KEY, reverse=is_reversed):
            kept = state["output_dict"]
            out = kept["cond_frame_outputs"].get(z) or kept["non_cond_frame_outputs"][z]
            result[z] = out["pred_masks"][0, 0].float().numpy()
    return np.stack([result[z] for z in range(DEPTH)])


def main() -> None:
    """Run the predictor, store its logits and say how far they lie from those that are stored."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("clone", type=Path)
    options.add_argument("--seeded", action="store_true")
    options.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / CALM.name)
    given = options.parse_args()
    open_clone(given.clone.resolve())
    model = predictor(given.clone)
    weights = seeded_model(published_config(), is_calm=not given.seeded)
    model.load_state_dict(original_tensors(weights), strict=True)
    result = {name: logits(model, name) for name in prompts()}
    np.savez_compressed(given.out, key=KEY, box_xyxy=[X0, Y0, X1, Y1], **result)  # type: ignore[arg-type]
    stored = GOLDEN if given.seeded else CALM
    if stored.exists():
        before = np.load(stored)
        for name, item in result.items():
            print(compare(f"{name} prompt, the predictor here", item, before[name]).line())
    print(given.out)


if __name__ == "__main__":
    main()
