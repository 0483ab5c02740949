"""Make of a package's folder what lies in a repository of the Hub, or say why not."""

import io
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement

from evidcore.errors import PluginError
from evidcore.registry import normal
from evidcore_plugin_hub.lint.target import lint_all, targets
from evidcore_plugin_hub.plugin.installing import pip, without_front_matter
from evidcore_plugin_hub.plugin.manifest import Manifest, manifest_of
from evidcore_plugin_hub.plugin.remote import FILE, TAG
from evidcore_plugin_hub.plugin.wheel import Wheel, open_wheel
from evidcore_plugin_hub.trust.names import is_known

_PATIENT_FILES = re.compile(
    r".*\.(nii|nii\.gz|dcm|dicom|ima|nrrd|nhdr|mg[hz]|mha|mhd|img|hdr|h5|hdf5|np[yz]|pkl|pickle|pt|sqlite|db|csv|tsv"
    r"|xlsx?|parquet|jsonl|feather|arrow|zip|tar|tgz|gz|7z|pdf|docx?|tiff?|svs|edf)",
    re.IGNORECASE,
)


def prepare(folder: Path) -> tuple[Manifest, dict[str, bytes]]:
    """Build, look at and lint a package; return its manifest, and the files of its repository.

    Raises:
        PluginError: why it cannot be published.
    """
    if not (folder / "pyproject.toml").is_file():
        raise PluginError(f"{folder}: has no pyproject.toml. `evid new reward NAME` writes a package.")
    changed = _git(folder, "status", "--porcelain", "--", ".").decode(errors="replace").splitlines()
    if changed:
        what = f"{len(changed)} files are not committed, as {changed[0][3:]!r}"
        raise PluginError(f"{folder}: {what}. Commit or remove them.")
    commit, epoch_s = _git(folder, "log", "-1", "--format=%H %ct").decode().split()
    rows = _git(folder, "ls-files", "--stage", "-z").decode(errors="replace").split("\0")
    modes = {name: row[:6] for row in rows if row for name in [row.partition("\t")[2]]}
    runs = {str(PurePosixPath(name).parent) for name in modes if PurePosixPath(name).name == "STATUS"}
    for name, mode in modes.items():
        what = "may hold patients' data" if _PATIENT_FILES.fullmatch(name) else ""
        if mode not in ("100644", "100755"):
            what = "is a link or a repository in this one"
        elif (folder / name).read_bytes()[128:132] == b"DICM":
            what = "is a DICOM file"
        elif runs & {str(parent) for parent in PurePosixPath(name).parents}:
            what = "is part of a run's folder"
        if what:
            raise PluginError(f"{folder / name}: {what}. Take it out of the package and its history.")
    archive = _git(folder, "archive", "--format=tar", "HEAD")
    first, second = (_built(archive, epoch_s, seed) for seed in ("0", "1"))
    if first != second:
        raise PluginError(
            f"{folder}: two builds of one commit differ, so nobody can tell whether a wheel is its source. "
            "Take what depends on the time, the place or the order out of its build."
        )
    wheel = open_wheel(*first)
    with tempfile.TemporaryDirectory() as place:
        committed = Path(place) / folder.resolve().name
        _unpack(archive, committed)
        requires = _pinned(wheel, committed)
        for result in lint_all(targets([str(committed)])):
            if alarms := [f"\n  {one['says']}" for one in result["checks"] if one["outcome"] == "alarm"]:
                what = f"{result['kind']} {result['name']}"
                raise PluginError(f"{what}: `evid lint {folder}` has alarms{''.join(alarms)}")
    manifest = manifest_of(wheel, requires=requires, commit=commit)
    files = {
        "README.md": _readme(wheel, manifest),
        FILE: manifest.to_bytes(),
        manifest.wheel: wheel.content,
        **{f"src/{path}": text for path, text in wheel.source.items()},
    }
    return manifest, files


def _git(folder: Path, *arguments: str) -> bytes:
    no_programs = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")  # of .git/config
    command = ["git", *no_programs, "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError as cause:
        raise PluginError("git is not installed here; what is published names its commit.") from cause
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        hint = "What is published names its commit: `git init`, `git add`, `git commit`."
        raise PluginError(f"{folder}: {said}. {hint}")
    return done.stdout


def _built(archive: bytes, epoch_s: str, seed: str) -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        source, out = Path(place) / f"source{seed}", Path(place) / "out"
        _unpack(archive, source)
        pip(
            "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir",
            "--wheel-dir", str(out), str(source),
            failed="the wheel cannot be built here; its build system must be installed",
            SOURCE_DATE_EPOCH=epoch_s, PYTHONHASHSEED=seed,
        )  # fmt: skip
        (wheel,) = out.iterdir()
        return wheel.name, wheel.read_bytes()


def _unpack(archive: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def _pinned(wheel: Wheel, folder: Path) -> tuple[str, ...]:
    """Return a wheel's requirements with the hashes that requirements.txt gives for them."""
    file, hashes = folder / "requirements.txt", dict[str, list[str]]()
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    for words in (line.partition("#")[0].split() for line in text.replace("\\\n", " ").splitlines()):
        if words and not words[0].startswith("-"):
            try:
                item = Requirement(words[0])
            except InvalidRequirement as cause:
                raise PluginError(f"{file}: {words[0]!r} is no requirement ({cause}).") from cause
            given = [word for word in words[1:] if word.startswith("--hash=sha256:")]
            hashes[f"{normal(item.name)}{item.specifier}"] = given
    result = []
    for line in wheel.requires:
        asked = Requirement(line)
        given = hashes.get(f"{normal(asked.name)}{asked.specifier}", [])
        if not given and not is_known(asked.name):
            raise PluginError(
                f"requirement {line!r} has no hash. Write requirements.txt beside pyproject.toml: "
                "`pip-compile --generate-hashes`, or a line with --hash=sha256:… from `pip hash`."
            )
        result.append(line if is_known(asked.name) else " ".join([line, *given]))
    return tuple(result)


def _readme(wheel: Wheel, manifest: Manifest) -> bytes:
    """Return the README with the front matter by which the Hub finds it."""
    from huggingface_hub import ModelCard, ModelCardData

    text = without_front_matter(wheel.readme)
    kinds = sorted({f"evidcore-{name.partition('/')[0]}" for name in manifest.components})
    licence = wheel.licence.lower() or None
    data = ModelCardData(library_name="evidcore", license=licence, tags=[TAG, *kinds])
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text.lstrip()}")).encode()


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of a package or its repository to a folder that is not there yet, or empty.

    Raises:
        PluginError: if something is in the way.
    """
    if folder.exists() and any(folder.iterdir()):
        raise PluginError(f"{folder}: holds files already. Name another folder.")
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
