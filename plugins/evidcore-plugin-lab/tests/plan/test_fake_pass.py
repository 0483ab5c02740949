import pytest
import torch
from evidcore_plugin_encoders.vit3d import ViT3D
from evidcore_plugin_lab.plan.fake_pass import held
from torch import nn


def meta(make):
    with torch.device("meta"):
        return make()


def test_a_line_of_layers_keeps_what_the_backward_pass_needs():
    module = meta(lambda: nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)))
    result = held(module, lambda: torch.zeros(3, 10), has_gradients=True, is_half=False)
    # the ReLU's output; the last output. Of the first layer only the input is needed, which was there before
    assert result.kept_bytes == 4 * 3 * (20 + 5)
    assert result.peak_bytes == 4 * 3 * (20 + 20)  # the first layer's output goes when the ReLU is done
    assert result.operations == {torch.float32: 2 * 3 * (10 * 20 + 20 * 5)}
    half = held(module, lambda: torch.zeros(3, 10), has_gradients=False, is_half=True)
    assert half.operations == {torch.bfloat16: result.operations[torch.float32]}


def test_without_gradients_nothing_but_the_output_is_kept():
    module = meta(lambda: nn.Sequential(*(nn.Linear(10, 10) for _ in range(6))))
    result = held(module, lambda: torch.zeros(3, 10), has_gradients=False, is_half=False)
    assert result.kept_bytes == 4 * 3 * 10
    assert result.peak_bytes == 2 * 4 * 3 * 10  # one layer's input and output


@pytest.mark.parametrize("is_half", [False, True])
def test_an_encoder_keeps_what_a_real_pass_keeps(saved, is_half):
    options = {"size_zyx": (8, 16, 16), "patch_zyx": (4, 8, 8), "width": 24, "layers": 3, "heads": 2}
    options["stem"] = "patch"
    real, volumes = ViT3D(**options), torch.zeros(2, 3, 8, 16, 16)
    known = [*real.parameters(), volumes]
    with torch.autocast("cpu", torch.bfloat16, enabled=is_half), saved(known) as storages:
        patches = real(volumes)
    for tensor in (patches.features, patches.centres_mm):
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    module = meta(lambda: ViT3D(**options))
    result = held(module, lambda: torch.zeros(2, 3, 8, 16, 16), has_gradients=True, is_half=is_half)
    assert result.kept_bytes == pytest.approx(sum(storages.values()), rel=0.02)


class Cuts(nn.Module):
    """Cuts its input where numbers say, as towers do that take pictures of any size."""

    def forward(self, rows):
        is_blank = (rows == 0).sum(dim=-1) == rows.shape[-1]
        lengths = torch.tensor([[1, 2], [1, 1]]).prod(dim=-1)
        return torch.cat([part * 2 for part in rows[~is_blank].split(lengths.tolist())])


def test_what_only_counts_is_worked_out():
    result = held(Cuts(), lambda: torch.ones(3, 5), has_gradients=False, is_half=False)
    assert result.kept_bytes == 4 * 3 * 5


def test_the_module_is_left_as_it_was():
    module = meta(lambda: nn.Linear(4, 4))
    before = [id(weight) for weight in module.parameters()]
    held(module, lambda: torch.zeros(1, 4), has_gradients=True, is_half=False)
    assert [id(weight) for weight in module.parameters()] == before
    assert all(weight.is_meta for weight in module.parameters())
