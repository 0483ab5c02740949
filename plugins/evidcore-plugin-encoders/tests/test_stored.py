"""`stored` trains and answers as the encoder that made its features, and refuses others by name."""

import json

import numpy as np
import pytest
import torch
from evidcore_plugin_encoders.stored import Stored, input_hash, pattern
from evidcore_plugin_encoders.vit3d import ViT3D
from evidcore_testing import check_encoder
from evidcore_testing.recipes import phantoms, recipe_text
from safetensors.torch import save_file

from evidcore.errors import EvidError

SHAPE = {"size_zyx": [16, 32, 32], "patch_zyx": [8, 16, 16], "width": 24, "windows": [[-1000.0, 400.0]]}
VIT = {**SHAPE, "heads": 2, "stem": "patch", "layers": 1}
STORED = {**SHAPE, "features": "made/features.toml"}
CAVEAT = "Features were stored: that the pixels of these volumes reached the model was not checked here."


def seeded():
    torch.manual_seed(0)
    return ViT3D(**VIT).eval()


@torch.no_grad()
def write_features(folder, volumes, made_by="a vit3d", flipped=()):
    """Do what somebody's script does with each input."""
    folder.mkdir(exist_ok=True)
    for volume in volumes:
        [features] = seeded()(volume[None].flip(flipped)).features
        np.save(folder / f"{input_hash(volume)}.npy", features.numpy())
    declared = f'made_by = "{made_by}"\npatch_zyx = {SHAPE["patch_zyx"]}\nwidth = {SHAPE["width"]}'
    (folder / "features.toml").write_text(declared, encoding="utf-8")


@pytest.mark.slow
def test_it_trains_and_answers_as_the_encoder_itself(evid, tmp_path):
    made, stored = tmp_path / "made", tmp_path / "stored.toml"
    shown = {"dataset": "chest", "task": "choice"}
    asked = {"data": [{**shown, "split": "test"}], "max_new_tokens": 24}
    for name, table in {"vit3d": {**VIT, "pretrained": "made"}, "stored": STORED}.items():
        text = recipe_text(
            {"kind": "sft", "train": ["bridge", "language"], "data": [shown], "steps": 3, "rows_per_step": 2,
             "learning_rate": 1e-3},
            {"kind": "evaluate", **asked}, {"kind": "audit", **asked}, name=name,
            dataset={"chest": phantoms(4, 2, 3, questions_per_finding=1)},
            task={"choice": {"use": "choice"}}, model={"encoder": {"use": name, **table}},
        )  # fmt: skip
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")

    def run(name, *words, exit_code=0):
        command = "run", tmp_path / f"{name}.toml", "--out", tmp_path / "runs", *words
        return evid(*command, exit_code=exit_code).output, max((tmp_path / "runs" / name).glob("2*"))

    count = json.loads(evid("convert", "inputs", stored, "--json").output)["lacking"]
    volumes = [torch.from_numpy(np.load(file)) for file in (made / "inputs").iterdir()]
    write_features(made, volumes[1:])
    says = f"model.encoder.features: {made}: 1 of the {count} inputs have no features, such as"
    assert says in run("stored", exit_code=2)[0]
    write_features(made, volumes)
    assert f"{made}: 0 of {count} inputs" in evid("convert", "inputs", stored).output
    evid("plan", stored)
    save_file(seeded().state_dict(), made / "weights.safetensors")
    theirs, ours = (run(name)[1] for name in ("vit3d", "stored"))
    losses, found = (
        [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (theirs, ours)
    )
    assert len(losses) == 3
    assert found == pytest.approx(losses, abs=1e-5)
    for stage in ("02-evaluate", "03-audit"):
        before, after = (json.loads((run / f"results/{stage}.json").read_text()) for run in (theirs, ours))
        [row] = [row for row in after["rows"] if row not in before["rows"]]
        assert (row["metric"], row["value"], row["note"]) == ("pixel_flow", None, CAVEAT)
    assert after["verdict"] == {"choice": f"{before['verdict']['choice']} {CAVEAT}"}
    write_features(made, volumes, flipped=(2,))
    output, _ = run("stored", "--set", "stage.evaluate.max_new_tokens=25", exit_code=2)
    assert f"{made}: holds other features than the model was trained on. Bring those back" in output
    write_features(made, volumes, "one that has them upside down", flipped=(2,))
    assert "pixel-flow proof, clause 'orientation': the lowest slab along z" in run("stored", exit_code=2)[0]


def test_it_keeps_the_contract_of_an_encoder(tmp_path):
    encoder, unloaded = (Stored(tmp_path, **STORED) for _ in range(2))
    volumes = torch.rand((3, 1, *SHAPE["size_zyx"]), generator=torch.Generator().manual_seed(0)) * 2 - 1
    write_features(tmp_path / "made", [pattern(encoder.input), *volumes])
    encoder.load_pretrained()
    check_encoder(encoder)
    torch.testing.assert_close(encoder(volumes).features, seeded()(volumes).features.detach())
    with pytest.raises(EvidError, match=r"made/[0-9a-f]{32}\.npy: no such features\. `evid convert inputs"):
        encoder(volumes.nextafter(torch.ones(())))
    with pytest.raises(EvidError, match="holds other features than the model was trained on"):
        unloaded(volumes)
    with pytest.raises(EvidError, match=r"cannot be trained\. Take 'encoder' out of train"):
        encoder.requires_grad_(True)(volumes)


@pytest.mark.parametrize(
    ("array", "declared", "says"),
    [
        (np.zeros((7, 24), "f4"), "", r"finite features \(8, 24\) \(patch, width\), got float32 \(7, 24\)"),
        (np.full((8, 24), np.nan), "", r"finite features \(8, 24\)"),
        (np.array([{}] * 3), "", r"is not a readable \.npy file \(Object arrays cannot be loaded"),
        (None, "width = 24", r"features.toml must say \{'made_by': '…', 'patch_zyx': \[8, 16, 16\]"),
        (None, 'made_by = "x"\npatch_zyx = [16, 8, 16]\nwidth = 24', r"it says .*\[16, 8, 16\]"),
    ],
)
def test_other_files_are_refused_by_name(array, declared, says, tmp_path):
    encoder, folder = Stored(tmp_path, **STORED), tmp_path / "made"
    assert "features.toml: no such file" in encoder.missing_weights()
    write_features(folder, [pattern(encoder.input)])
    assert encoder.missing_weights() == ""
    if declared:
        (folder / "features.toml").write_text(declared, encoding="utf-8")
    else:
        np.save(folder / f"{input_hash(pattern(encoder.input))}.npy", array)
    with pytest.raises(EvidError, match=says):
        encoder.load_pretrained()
