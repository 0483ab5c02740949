"""NiiVue, which draws scans in three planes and 3D: fetched by npm and checked by its hash, not in git.

`python -m evidcore_plugin_view.niivue` fetches it; building a wheel of this package does the same. This file
imports nothing but the standard library: `hatch_build.py` runs it before the package is installed.
"""

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@niivue/niivue@0.69.0"
INTEGRITY = "sha512-YMjQvJgD1W2b7DuoxkwlC4VxbrgIePRJ5qyQzXKxi2v2MBVg285P/CIQyg46oDDGDIcaNlbd+MhtO/edMbXJkA=="
MEMBER = "package/dist/index.js"
SHA256 = "d6c2be4feb1ad53b2ac76b4196da8d8fd2263b662b511c55ca0fd127eb6a6532"  # of that member
ASSET = Path(__file__).parent / "assets" / "niivue.js"
LIMIT_S = 120


class FetchError(Exception):
    """NiiVue cannot be had here; says why."""


def fetch(asset: Path = ASSET) -> None:
    """Write NiiVue to `asset`, unless it is there already.

    Raises:
        FetchError: if npm is not there or fails, or what it gives has another hash.
    """
    if not asset.is_file() or hashlib.sha256(asset.read_bytes()).hexdigest() != SHA256:
        beside = asset.with_suffix(".part")
        beside.write_bytes(fetch_member(PACKAGE, INTEGRITY, MEMBER))
        beside.replace(asset)


def fetch_member(package: str, integrity: str, member: str) -> bytes:
    """Have npm fetch a package, and return one file of it.

    Args:
        package: with its exact version.
        integrity: of the archive, what npm calls so: "sha512-" and the hash in base64.
        member: the file's path in the archive.

    Raises:
        FetchError: if npm is not there or fails, or the archive has another hash.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError(f"npm is not installed, and it fetches {PACKAGE}.")
    words = [npm, "pack", package, "--ignore-scripts", "--silent", "--fetch-retries=1"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired as cause:
            raise FetchError(f"npm pack {package}: no answer in {LIMIT_S} s.") from cause
        archives = sorted(Path(folder).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise FetchError(f"npm pack {package}: exit {done.returncode}: {said}")
        result = base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
        if f"sha512-{result}" != integrity:
            raise FetchError(f"{package}: has the integrity sha512-{result}, and {integrity} is wanted.")
        with tarfile.open(archives[0]) as opened:
            content = opened.extractfile(member)
            assert content is not None  # the hash says so
            return content.read()


if __name__ == "__main__":
    try:
        fetch()
    except FetchError as error:
        sys.exit(f"{error} The viewer shows slices without it.")
    print(f"{ASSET.name}: {PACKAGE}")
