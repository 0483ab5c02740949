"""Encoder `i3resnet`: Merlin's inflated 3D ResNet-152, with the weights of Merlin or of Astra.

The network is MONAI's `ResNet`, whose names are those of the published checkpoints. It was trained on z, x to
the patient's right and y to the front, in 0..1: volumes are turned so, and features are turned back.
"""

import contextlib
import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from einops import rearrange
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from jaxtyping import Float
from monai.networks.nets.resnet import ResNet, ResNetBottleneck
from torch import Tensor

from evidcore.api import DataError, Encoder, EncoderInput, Patches
from evidcore.compute.loading import load_weights
from evidcore.contracts import Grid
from evidcore.errors import RecipeError
from evidcore_plugin_encoders.weight_files import WEIGHTS, read_tensors

BLOCKS, PLANES = (3, 8, 36, 3), (64, 128, 256, 512)  # of layers 1 to 4
HUB_FILE = re.compile(r"(?P<repo_id>[\w.-]+/[\w.-]+)@(?P<revision>[\w.-]+):(?P<filename>\S+)")
# how the network's names begin in Astra's checkpoint, in Merlin's, and in a file of it alone
PREFIXES = ("visual_encoder.model.encode_image.i3_resnet.", "encode_image.i3_resnet.", "")
HEADS = ("classifier.", "contrastive_head.")  # of Merlin's checkpoint
Side = Annotated[int, Ge(32)]
Spacing = Annotated[float, Gt(0)]


class I3ResNet(Encoder):
    """The inflated 3D ResNet-152 of Merlin (arXiv 2406.06512), of which Astra trained weights of its own."""

    is_batch_invariant: ClassVar[bool] = True

    def __init__(
        self,
        recipe_folder: Path = Path(),
        *,
        size_zyx: tuple[Side, Side, Side] = (160, 224, 224),
        spacing_mm_zyx: tuple[Spacing, Spacing, Spacing] | None = None,
        window: tuple[float, float] = (-1000.0, 200.0),
        layer: Literal[2, 3, 4, "2+3"] = "2+3",
        precision: Literal["float32", "bfloat16"] = "float32",
        pretrained: str = "",
    ) -> None:
        """Build the network up to a layer, with random weights; `load_pretrained` reads those named.

        Args:
            recipe_folder: where a relative `pretrained` starts.
            size_zyx: input size in voxels; half the published one takes an eighth of the time.
            spacing_mm_zyx: spacing that volumes are resampled to; Merlin's is [3, 1.5, 1.5]. Without one the
                whole field of view is resized, as for Astra.
            window: (low, high) in HU: Astra's; Merlin's is [-1000, 1000].
            layer: whose features are given: 2 (a patch every 4 x 8 x 8 voxels, 512 wide), 3 (8 x 16 x 16,
                1,024), 4 (16 x 32 x 32, 2,048), or "2+3": layer 2's maxima at layer 3's patches before it.
            precision: of the arithmetic; "bfloat16" is for an encoder that no stage trains.
            pretrained: a folder with `weights.safetensors`, as `make astra` writes it, or a file on the Hub,
                `stanfordmimi/Merlin@REVISION:FILE`; "" for random weights.
        """
        super().__init__()
        if not window[0] < window[1]:
            raise RecipeError(f"i3resnet: a window is [low, high] in HU, low below high; got {list(window)}.")
        self.input = EncoderInput(size_zyx=size_zyx, spacing_mm_zyx=spacing_mm_zyx, windows=(window,))
        self.layers = (2, 3) if layer == "2+3" else (layer,)
        self.width = sum(4 * PLANES[number - 1] for number in self.layers)
        self.precision, self.pretrained, self._folder = precision, pretrained, recipe_folder
        last = self.layers[-1]
        self.step_zyx: Grid = (2**last, 2 ** (last + 1), 2 ** (last + 1))  # voxels from patch to patch
        above = range(last + 1, len(BLOCKS) + 1)
        # MONAI builds four layers: those above the last one have a single channel and are taken off
        self.body = ResNet(
            ResNetBottleneck, [*BLOCKS[:last], *(1 for _ in above)], [*PLANES[:last], *(1 for _ in above)],
            spatial_dims=3, n_input_channels=3, conv1_t_size=(3, 7, 7), conv1_t_stride=(1, 2, 2),
            feed_forward=False, bias_downsample=False,
        )  # fmt: skip
        for number in above:
            delattr(self.body, f"layer{number}")

    def grid(self, size_zyx: Grid) -> Grid:
        """Return the patches of an input: its size over the step, rounded up."""
        z, y, x = (-(-size // step) for size, step in zip(size_zyx, self.step_zyx, strict=True))
        return z, y, x

    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        """Encode volume by volume: memory stays that of one, and no bit depends on the others."""
        _, _, z, y, x = volumes.shape
        maps = torch.cat([self._maps(volume[None]) for volume in volumes])
        features = rearrange(maps, "v w z y x -> v (z y x) w").float()
        grid, centres = self.grid((z, y, x)), []  # along the network's axes, patch i is on voxel i * step
        for count, step, size in zip(grid, self.step_zyx, (z, y, x), strict=True):
            centres.append(torch.arange(count, device=features.device) * step - (size - 1) / 2)
        spacing = torch.tensor(self.input.spacing_mm_zyx or (1.0, 1.0, 1.0), device=features.device)
        places = torch.cartesian_prod(centres[0], -centres[1].flip(0), -centres[2].flip(0))
        return Patches(features, grid, places * spacing)

    def _maps(self, volume: Float[Tensor, "1 channel z y x"]) -> Float[Tensor, "1 width z2 y2 x2"]:
        body = self.body
        turned = rearrange((volume + 1) / 2, "v c z y x -> v c z x y").flip(3, 4).expand(-1, 3, -1, -1, -1)
        maps = turned.contiguous(memory_format=torch.channels_last_3d)
        rounded = torch.autocast(volume.device.type, torch.bfloat16)
        with rounded if self.precision == "bfloat16" else contextlib.nullcontext():
            maps = body.maxpool(body.act(body.bn1(body.conv1(maps))))
            second = body.layer2(body.layer1(maps))
            maps = body.layer3(second) if self.layers != (2,) else second
            if self.layers == (4,):
                maps = body.layer4(maps)
            elif self.layers == (2, 3):
                # the network's own pool, three wide: its windows are centred where layer 3's patches are
                maps = torch.cat([body.maxpool(second), maps], dim=1)
        return rearrange(maps.flip(3, 4), "v w z x y -> v w z y x")

    def missing_weights(self) -> str:
        """Say that the folder holds no weights, or that the Hub's file is not here."""
        if hub := HUB_FILE.fullmatch(self.pretrained):
            if isinstance(try_to_load_from_cache(**hub.groupdict()), str):
                return ""
            name, file, revision = hub["repo_id"], hub["filename"], hub["revision"]
            return f"{file} of {name} is not here. `hf download {name} {file} --revision {revision}` gets it."
        path = self._folder / self.pretrained / WEIGHTS
        if not self.pretrained or path.is_file():
            return ""
        return f"{path}: there is no such file. `make astra` writes it; the Hub's are NAME@REVISION:FILE."

    def load_pretrained(self) -> None:
        """Read the weights that `pretrained` names; a file of the Hub that is not here is downloaded.

        Raises:
            DataError: if they cannot be had, or are not those of this network; names them.
        """
        if not self.pretrained:
            return
        path = self._folder / self.pretrained / WEIGHTS
        missing = self.missing_weights()
        if hub := HUB_FILE.fullmatch(self.pretrained):
            try:
                cached = try_to_load_from_cache(**hub.groupdict())
                path = Path(cached if isinstance(cached, str) else hf_hub_download(**hub.groupdict()))
            except Exception as cause:  # of the client, of the network, or of the disk
                raise DataError(f"model.encoder.pretrained: {missing}") from cause
        elif missing:
            raise DataError(f"model.encoder.pretrained: {missing}")
        weights = read_tensors(path)
        # of any known checkpoint those of the layers that are built, by MONAI's names
        prefix = next((prefix for prefix in PREFIXES if f"{prefix}conv1.weight" in weights), "")
        above = [f"layer{number}." for number in range(self.layers[-1] + 1, len(BLOCKS) + 1)]
        unused = tuple(f"{prefix}{name}" for name in (*HEADS, *above))
        of_body = {
            name.removeprefix(prefix): weight
            for name, weight in weights.items()
            if name.startswith(prefix) and not name.startswith(unused)
        }
        load_weights(self.body, path, "Name weights of Merlin or Astra.", of_body)
