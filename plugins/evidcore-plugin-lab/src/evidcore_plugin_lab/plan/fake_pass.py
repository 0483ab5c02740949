"""What a module holds in memory while it runs, counted on tensors that have a shape and no storage."""

import dataclasses
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes beside a module's weights and its input."""

    peak_bytes: int  # at any moment of the forward pass
    kept_bytes: int  # at its end: what the backward pass needs, and the output
    operations: Mapping[torch.dtype, int]  # of products and convolutions, by the type they are computed in


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive_bytes = self.peak_bytes = 0
        self.operations: Counter[torch.dtype] = Counter()
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def known(self, tensor: Tensor) -> None:
        """Count this one no more: it was there before."""
        self._seen.add(tensor.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = self._made(func, args, kwargs or {})
        if formula := flop_registry.get(func.overloadpacket):
            self.operations[args[1].dtype] += formula(*args, **(kwargs or {}), out_val=made)
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.untyped_storage() not in self._seen:
                storage = tensor.untyped_storage()
                self._seen.add(storage)
                self.alive_bytes += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self.alive_bytes)
        return made

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an operation; really where it only counts, as towers do to find the places of patches."""
        given = [item for item in tree_leaves((args, kwargs)) if isinstance(item, Tensor)]
        counts = all(not isinstance(item, FakeTensor) and not item.is_floating_point() for item in given)
        if given and counts:
            return _really(func, *args, **kwargs)
        if func is torch.ops.aten.eq.Scalar:  # values that are not known equal none: no picture is blank
            return _really(torch.zeros, args[0].shape, dtype=torch.bool)
        if func is torch.ops.aten.index.Tensor:  # by a mask: where it is true
            args = (args[0], [_places(item) for item in args[1]])
        made = func(*args, **kwargs)
        is_new = not given and isinstance(made, Tensor) and not made.is_floating_point()
        return _really(func, *args, **kwargs) if is_new else made

    def _free(self, size_bytes: int) -> None:
        self.alive_bytes -= size_bytes


def _really(func: Any, *args: Any, **kwargs: Any) -> Any:
    with unset_fake_temporarily():
        return func(*args, **kwargs)


def _places(index: Tensor | None) -> Tensor | None:
    is_mask = index is not None and index.dtype == torch.bool and index.ndim == 1
    return _really(index.nonzero)[:, 0] if is_mask and index is not None else index


def held(module: nn.Module, given: Callable[[], Any], *, has_gradients: bool, is_half: bool) -> Held:
    """Run `module` once on fake tensors, as a CPU would.

    Args:
        module: on the meta device; left there.
        given: makes the input; called where tensors are fake.
        has_gradients: keep what a backward pass would need.
        is_half: compute in bfloat16 under autocast.
    """
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    # what a module keeps beside its weights, such as places that it has worked out, stays what it is
    with FakeTensorMode(allow_non_fake_inputs=True):
        weights = {
            name: torch.empty(item.shape, dtype=item.dtype, requires_grad=item.requires_grad)
            for name, item in tensors
        }
        inputs = given()
        count = Count()
        for tensor in tree_leaves([weights, inputs]):
            if isinstance(tensor, Tensor):
                count.known(tensor)
        grads = torch.enable_grad() if has_gradients else torch.no_grad()
        with grads, torch.autocast("cpu", torch.bfloat16, enabled=is_half), count:
            output = functional_call(module, weights, (inputs,))
        result = Held(peak_bytes=count.peak_bytes, kept_bytes=count.alive_bytes, operations=count.operations)
        del output
    return result
