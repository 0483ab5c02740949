"""The same objects through transformers' own session: what tests and benchmarks compare with."""

import numpy as np
import torch
from transformers.models.sam2_video.modeling_sam2_video import Sam2VideoInferenceSession

from evidcore.contracts import BoxPrompt, MaskPrompt

OBJECT = 1


class StockSession:
    """One `Sam2VideoInferenceSession` that keeps the features of all its slices.

    Slices are (slice, 3, size, size); `shape_yx` is that of a slice on the volume's grid.
    """

    def __init__(self, model, slices, shape_yx):
        self.model, self.shape_yx = model, shape_yx
        self.session = Sam2VideoInferenceSession(
            video=slices, video_height=shape_yx[0], video_width=shape_yx[1],
            inference_device=model.device, inference_state_device=model.device,
            max_vision_features_cache_size=len(slices), dtype=torch.float32,
        )  # fmt: skip

    def track(self, prompt):
        """Return the logits of an object, shape (slice, low y, low x); memory is cleared between the ways."""
        result = {}
        for is_reversed in (False, True):
            self.start(prompt)
            result |= self.follow(prompt.z, is_reversed)
        return np.stack([result[z] for z in sorted(result)])

    def follow(self, start_z, is_reversed):
        """Return the logits on each slice that follows, by its z."""
        outs = self.model.propagate_in_video_iterator(
            self.session, start_frame_idx=start_z, reverse=is_reversed
        )
        return {out.frame_idx: out.pred_masks[0, 0].cpu().numpy() for out in outs}

    def start(self, prompt):
        """Give a prompt to a session that has forgotten everything but the slices."""
        session = self.session
        session.reset_tracking_data()
        index = session.obj_id_to_idx(OBJECT)
        if isinstance(prompt, MaskPrompt):
            session.add_mask_inputs(index, prompt.z, torch.from_numpy(prompt.mask.copy()).float()[None, None])
        else:
            if isinstance(prompt, BoxPrompt):
                box = prompt.box
                places, labels = [[box.x0, box.y0], [box.x1 - 1, box.y1 - 1]], [2, 3]
            else:
                places, labels = [[prompt.x, prompt.y]], [1]
            height, width = self.shape_yx
            scale = self.model.image_size / torch.tensor([width, height])
            marks = {
                "point_coords": torch.tensor([[places]], dtype=torch.float32) * scale,
                "point_labels": torch.tensor([[labels]], dtype=torch.int32),
            }
            session.add_point_inputs(index, prompt.z, marks)
        session.obj_with_new_inputs = [OBJECT]
        self.model(session, frame_idx=prompt.z)
