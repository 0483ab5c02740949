"""`evid pack`: a run, and the stages that it uses, in one file."""

import json
import tarfile
from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The archive; <run>.tar in this folder if left out."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pack(folder: Path, out: Path | None, as_json: bool) -> None:
    """Pack a run whole, with the stages that it links to, to be moved or kept.

    `tar -xf FILE` gives a folder <recipe>/<run> that `evid page`, `predict`, `export` and, where its data lie
    as before, `resume` take. It holds all prompts, answers and reports of the run.
    """
    from evidcore.runs.folder import open_run

    run = open_run(folder).path
    target = out or Path(f"{run.name}.tar")
    packed = pack_run(run, target)
    if as_json:
        click.echo(json.dumps({"archive": str(target), "stages": packed, "bytes": target.stat().st_size}))
        return
    click.echo(f"{target}: {run.name} and {len(packed)} stages, {target.stat().st_size / 1e6:.0f} MB")
    click.echo("It may hold texts of patients: prompts, answers, reports.")


def pack_run(run: Path, target: Path) -> list[str]:
    """Write a run and its stages to a .tar, which appears when it is whole; return the stages' names."""
    from evidcore_plugin_pages.record import read_head

    from evidcore.cache import appearing
    from evidcore.compute.signals import is_locked
    from evidcore.errors import RunError

    if target.exists():
        raise RunError(f"{target}: is there already, and nothing is overwritten. Name another with --out.")
    if is_locked(run):
        why = "a process is running it, so its files still change"
        raise RunError(f"{run}: {why}. Pack it when that has ended.")
    store, names = run.parent / "stages", [result.get("inputs") for result in read_head(run).results]
    own = [path.resolve().relative_to(store).parts[0] for path in run.rglob("*") if path.is_symlink()]
    used = [name for name in names if name and name.isalnum() and (store / name).is_dir()]
    stages = sorted({*own, *used})
    with appearing(target) as partial, tarfile.open(partial, "w") as archive:
        for path in (run, *(store / name for name in stages)):
            place = path.relative_to(run.parent.parent)
            archive.add(path, str(place), filter=lambda one: None if one.name.endswith("/.lock") else one)
    return stages
