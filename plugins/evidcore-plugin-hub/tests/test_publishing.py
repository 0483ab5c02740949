"""What cannot be published, each refused before anything is sent."""

import os
import re
import subprocess

import made_wheels as made
import pytest
from evidcore_plugin_hub.new import write_package
from evidcore_plugin_hub.plugin import publishing
from evidcore_plugin_hub.plugin.manifest import FILE, differences, read_manifest
from evidcore_plugin_hub.plugin.wheel import open_wheel
from evidcore_testing.recipes import replaced

from evidcore.errors import PluginError

BACKEND = """
import os, pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "evid_x-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as archive:
        meta = "evid_x-1.0.dist-info/"
        archive.writestr(meta + "METADATA", "Metadata-Version: 2.1\\nName: evid-x\\nVersion: 1.0\\n")
        archive.writestr(meta + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr("evid_x.py", "X = " + repr(os.urandom(4)))
        archive.writestr("evid_x-1.0.dist-info/RECORD", "")
    return name
"""


def git(folder, *words):
    who = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-C", str(folder), *words]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **who})


@pytest.fixture
def folder(tmp_path):
    """A package as generated, committed."""
    place = tmp_path / "evid-reward-brief"
    write_package("reward", "brief", place)
    git(tmp_path, "init", "--quiet", str(place))
    commit(place)
    return place


def commit(place):
    git(place, "add", ".")
    git(place, "commit", "--quiet", "--message", "x")


def refusal(folder):
    with pytest.raises(PluginError) as caught:
        publishing.prepare(folder)
    return str(caught.value)


@pytest.mark.slow
def test_what_is_published_is_what_its_commit_builds(folder, tmp_path):
    manifest, files = publishing.prepare(folder)
    assert files == publishing.prepare(folder)[1]
    assert sorted(files) == [
        "README.md", "dist/evid_reward_brief-0.1.0-py3-none-any.whl", FILE, "src/evid_reward_brief.py"
    ]  # fmt: skip
    assert files["src/evid_reward_brief.py"] == (folder / "src/evid_reward_brief.py").read_bytes()
    wheel = open_wheel(os.path.basename(manifest.wheel), files[manifest.wheel])
    assert differences(read_manifest(files[FILE], "x"), wheel) == []
    front = b"---\nlibrary_name: evidcore\nlicense: apache-2.0\ntags:\n- evidcore-plugin"
    assert files["README.md"].startswith(front)
    publishing.write(files, tmp_path / "out")
    with pytest.raises(PluginError, match="holds files already"):
        publishing.write(files, tmp_path / "out")


def test_a_folder_that_is_no_package_or_not_under_git(tmp_path, folder):
    assert "has no pyproject.toml. `evid new reward NAME`" in refusal(tmp_path)
    write_package("reward", "loose", tmp_path / "loose")
    assert "`git init`, `git add`, `git commit`" in refusal(tmp_path / "loose")


def test_a_tree_with_changes_is_refused_and_its_git_runs_no_program_of_its_own(folder, tmp_path):
    (folder / "src/new.py").write_text("")
    git(folder, "config", "core.fsmonitor", f"touch {tmp_path / 'ran'} #")
    assert "1 files are not committed, as 'src/new.py'. Commit or remove them" in refusal(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("data/scan.nii.gz", b"x", "may hold patients' data"),
        ("data/scan.NRRD", b"x", "may hold patients' data"),
        ("reports.csv", b"id,report\n", "may hold patients' data"),
        ("export/IM0001", bytes(128) + b"DICM", "is a DICOM file"),
        ("runs/x/answers/04.txt", b"", "is part of a run's folder"),
    ],
)
def test_what_may_be_of_patients_is_refused_wherever_it_lies(folder, path, content, said):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)
    if "runs" in path:
        (folder / "runs/x/STATUS").write_text("finished\n")
    commit(folder)
    refused = refusal(folder)
    assert said in refused
    assert str(folder / path.partition("/answers")[0]) in refused


def change(file, *pairs):
    file.write_text(replaced(file.read_text(), *pairs))


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ('backend"\nbackend-path = ["."]\n#', "two builds of one commit differ"),
        ("no_such_backend", "cannot be built here; its build system must be installed.*no_such_backend"),
    ],
)
def test_two_builds_that_differ_and_one_that_fails_are_refused(folder, backend, says):
    (folder / "backend.py").write_text(BACKEND)
    change(folder / "pyproject.toml", ('"setuptools>=77"', ""), ("setuptools.build_meta", backend))
    commit(folder)
    assert re.search(says, refusal(folder), re.DOTALL)


@pytest.mark.slow
def test_a_reward_that_lint_alarms_is_refused(folder):
    harmful = "min(1.0, len(rollout.text) / 5000)"
    change(folder / "src/evid_reward_brief.py", ("float(answer.choice == right)", harmful))
    commit(folder)
    assert "has alarms\n" in refusal(folder)


def asking(*requires):
    content = made.files(meta=made.metadata(requires=["evidcore>=0.1,<0.2", *requires]))
    return open_wheel(made.FILE, made.wheel(content))


def test_requirements_come_with_their_hashes(tmp_path):
    pinned = tmp_path / "requirements.txt"
    digest = f"sha256:{'0' * 64}"
    pinned.write_text(f"# pins\n--index-url x\nnumpy==2.1.0 \\\n    --hash={digest} # wheel\nrich==13.0\n")
    known = "evidcore-plugin-lab>=0.1,<0.2"
    result = publishing._pinned(asking("numpy==2.1.0", known), tmp_path)
    assert result == (f"numpy==2.1.0 --hash={digest}", known)
    for line in ("rich==13.0", "numpy==2.2.0", "scipy==1.0"):
        with pytest.raises(PluginError, match=f"requirement '{line}' has no hash"):
            publishing._pinned(asking(line), tmp_path)
    pinned.write_text("??? ==1\n")
    with pytest.raises(PluginError, match="is no requirement"):
        publishing._pinned(asking("numpy==2.1.0"), tmp_path)
