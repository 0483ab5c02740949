"""A model's parts: encoder and bridge of a table, the part of a weight, matrices, weights of 16 or 4 bits."""

import contextlib
import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from evidcore.compute.loading import device_of
from evidcore.contracts import Bridge, Encoder
from evidcore.contracts.stage import Lora
from evidcore.errors import RecipeError
from evidcore.recipe.schema import Model
from evidcore.registry import factory

Table = Mapping[str, Any]


def build_encoder(
    table: Table, vision: Table | None, *, where: str = "model.encoder", **given: Any
) -> Encoder:
    """Build the encoder of a recipe table, with fresh weights.

    `vision` is the language model's own vision configuration, if it has one.
    """
    built: Encoder = factory.build("encoder", table, given={**given, "vision": vision}, where=where)
    return built


def build_bridge(
    table: Table, encoder: Encoder, text_width: int, vision: Table | None, *, where: str = "model.bridge"
) -> Bridge:
    """Build the bridge of a recipe table between `encoder` and a language model, with fresh weights."""
    given = {
        "width": encoder.width, "text_width": text_width, "grid_zyx": encoder.grid(encoder.input.size_zyx),
        "vision": vision,
    }  # fmt: skip
    built: Bridge = factory.build("bridge", table, given=given, where=where)
    return built


def part_of(name: str) -> str:
    """Return the part that a weight belongs to, by its name, whatever is wrapped around the model.

    A part may hold a module called like another part: the first name below `model.` decides.
    """
    bare = re.sub(r"_\w+_wrapped_module\.|_orig_mod\.", "", name)
    result = re.search(r"(?:^|\.)model\.(encoder|bridge|language_model)\.", bare)
    return result[1].removesuffix("_model") if result else "language"


def matrices_of(model: nn.Module) -> set[torch.Tensor]:
    """Return the weights of linear layers, the one that gives logits left out, as embeddings are."""
    head = getattr(model, "lm_head", None)
    return {
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Linear) and (head is None or module.weight is not head.weight)
    }


def adapted_layers(parts: Mapping[str, nn.Module], lora: Lora, where: str) -> dict[str, nn.Linear]:
    """Return the linear layers of `parts` that adapters are added to, each below the name of its part.

    Attention of torch's own multiplies by a matrix without calling its layer: such a one is left out.

    Raises:
        RecipeError: if a part has none, or a name of `lora.target_modules` is no layer's.
    """
    kinds, names = (nn.Linear, FrozenLinear, AdaptedLinear), lora.target_modules
    every = {
        f"{part}.{name}": layer
        for part, module in parts.items() for name, layer in module.named_modules() if type(layer) in kinds
    }  # fmt: skip
    last = {name: name.rpartition(".")[2] for name in every}
    result = {name: layer for name, layer in every.items() if not names or last[name] in names}
    bare = [part for part in parts if not any(name.startswith(f"{part}.") for name in result)]
    if bare or set(names) - set(last.values()):
        raise RecipeError(
            f"{where}.lora.target_modules: must name linear layers of each part, got {list(names)}. Of "
            f"{' and '.join(parts)} there are {', '.join(sorted(set(last.values()))) or 'none'}."
        )
    return result


def keep_in_bfloat16(part: str, module: nn.Module) -> int:
    """Round a frozen part's matrices, as autocast does at each product; return how many numbers these are."""
    rounded = (nn.Linear, nn.Embedding) if part == "language" else (nn.Linear, _ConvNd)
    weights = {layer.weight for layer in module.modules() if isinstance(layer, rounded)}
    for weight in weights:
        weight.data = weight.data.to(torch.bfloat16)
    return sum(weight.numel() for weight in weights)


def refuse_4bit(model: Model) -> None:
    """Raise RecipeError where a recipe asks for 4 bits, and a run here could not have them."""
    if model.load_in_4bit and not torch.cuda.is_available():
        text = "torch sees no GPU, and on a CPU each product would first unpack its matrix, slowly"
        raise RecipeError(f"model.load_in_4bit: {text}. Run it on a GPU, or leave load_in_4bit out.")
    if model.load_in_4bit:
        _bitsandbytes()


def _bitsandbytes() -> Any:
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as cause:
        text = f"model.load_in_4bit: bitsandbytes cannot be imported ({cause})."
        raise RecipeError(f"{text} Type: pip install 'evidcore[quantization]'") from cause


def packable(module: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers whose matrices may lie in 4 bits, by name.

    Others have rows that are no multiple of 64 numbers: on a CPU, bitsandbytes 0.50 misreads scales of some.
    """
    linear = [item for item in module.named_modules() if type(item[1]) in (nn.Linear, AdaptedLinear)]
    return {name: layer for name, layer in linear if layer.in_features % 64 == 0}


def quantise(module: nn.Module) -> None:
    """Pack the matrices of a frozen module's layers in 4 bits, on the GPU where there is one."""
    options = {"quant_type": "nf4", "compress_statistics": False}  # so what is packed again is the same
    for name, layer in packable(module).items():
        frozen = layer if isinstance(layer, FrozenLinear) else FrozenLinear(layer)
        packed = _bitsandbytes().nn.Params4bit(layer.weight.data, **options)
        frozen.weight = packed.to(device_of("auto", "model")).to(layer.weight.device)
        module.set_submodule(name, frozen)


def unpacked(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's state, with the matrices in bfloat16 that 4 bits stand for."""
    result = model.state_dict()
    for name, layer in model.named_modules():
        if isinstance(layer, FrozenLinear) and layer.weight.dtype == torch.uint8:
            whole = _bitsandbytes().functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
            result[f"{name}.weight"] = whole.cpu()
    return result


class FrozenLinear(nn.Linear):
    """A matrix in bfloat16, or in 4 bits: NF4 of QLoRA (arXiv:2305.14314), a scale for 64 numbers."""

    weight: Any  # in 4 bits, a Params4bit of bitsandbytes

    def __init__(self, layer: nn.Linear) -> None:
        """Take over a layer's matrix and bias."""
        super().__init__(layer.in_features, layer.out_features, device="meta")
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, given: Tensor) -> Tensor:
        """Multiply by it, in bfloat16 where it lies in 4 bits."""
        if self.weight.dtype != torch.uint8:
            return super().forward(given)
        bias, state = None if self.bias is None else self.bias.bfloat16(), self.weight.quant_state
        product: Tensor = _bitsandbytes().matmul_4bit(given.bfloat16(), self.weight, state, bias=bias)
        return product


class AdaptedLinear(FrozenLinear):  # PEFT turns all adapters off together; a reference needs these
    """A frozen matrix and what adapters have learnt, apart: merged, most would be rounded away."""

    down: Tensor  # (rank, in)
    up: Tensor  # (out, rank)

    def __init__(self, layer: nn.Linear, down: Tensor, up: Tensor) -> None:
        """Add the product of `up` and `down` to a layer, and to what it was given before."""
        super().__init__(layer)
        if isinstance(layer, AdaptedLinear):
            down, up = torch.cat([layer.down, down]), torch.cat([layer.up, up], dim=1)
        self.down, self.up = (nn.Parameter(item.detach(), requires_grad=False) for item in (down, up))

    def forward(self, given: Tensor) -> Tensor:
        """Multiply by both."""
        return super().forward(given) + functional.linear(functional.linear(given, self.down), self.up)


def multiplied(module: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which a module's weights in bfloat16 are multiplied so."""
    result = [item.device.type for item in module.parameters() if item.dtype == torch.bfloat16]
    return torch.autocast(result[0], torch.bfloat16) if result else contextlib.nullcontext()


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Hold the module in evaluation mode, `multiplied`; give its own mode back."""
    was = module.training
    module.eval()
    try:
        with multiplied(module):
            yield
    finally:
        module.train(was)
