"""`evid data prepare`: fill the cache for a whole set."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import click

from evidcore.cli.run import follow
from evidcore.errors import printable

_WORDS = {
    "done": "done",
    "already_there": "already there",
    "no_room": "without room",
    "not_needed": "too small to be worth keeping",
    "left_out": "left out",
}


def _shard(context: click.Context, option: click.Parameter, text: str) -> tuple[int, int]:
    """Read i/n."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise click.BadParameter(f"must be i/n with i from 1 to n, got {text!r}. For instance 2/4.")
    return int(found[1]), int(found[2])


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a key of the recipe.")
@click.option(
    "--dataset", "datasets", multiple=True, metavar="NAME", help="Only this data set; may be repeated."
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    type=click.Choice(["train", "validation", "test"]),
    help="Only this split; may be repeated.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many cases are read at once.",
)
@click.option(
    "--shard",
    default="1/1",
    callback=_shard,
    metavar="I/N",
    help="Only share I of N, for instance one a machine.",
)
@click.option("--inputs-only", is_flag=True, help="Keep what the encoder is given, not the volumes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def prepare(
    recipe: Path,
    overrides: tuple[str, ...],
    datasets: tuple[str, ...],
    splits: tuple[str, ...],
    processes: int,
    shard: tuple[int, int],
    inputs_only: bool,
    as_json: bool,
) -> None:
    """Read every volume of a recipe's data sets, and keep volumes and encoder inputs in the cache.

    Killed and started again, it goes on where it stopped. EVID_CACHE names the cache folder, EVID_CACHE_GB
    its limit.
    """
    from evidcore.recipe import load

    loaded = load(recipe, overrides)  # a mistake is told before all else is imported

    from evidcore.cache import cache_folder
    from evidcore_plugin_doctor.prepare import fill

    with follow("prepare") as told:
        found = fill(
            loaded, datasets=datasets, splits=splits, processes=processes, shard=shard,  # type: ignore[arg-type]
            keeps_volumes=not inputs_only, told=told,
        )  # fmt: skip
    if as_json:
        facts = {"recipe": str(recipe), "cache": str(cache_folder()), "shard": f"{shard[0]}/{shard[1]}"}
        click.echo(json.dumps({**facts, **dataclasses.asdict(found)}, indent=1))
        return
    for message in found.unlisted:
        click.echo(printable(f"not read: {message}"))
    for case, reason in found.left_out.items():
        click.echo(printable(f"left out: {case}: {reason}", keep=""))
    counts = ", ".join(f"{count} {_WORDS[name]}" for name, count in found.outcomes.items() if count)
    written = f"{found.size_bytes / 1e9:.3g} GB written to {cache_folder()}"
    click.echo(f"{recipe}: {counts or 'no case is in this share'}; {written} in {found.seconds:.0f} s")
    if found.deleted_bytes:
        click.echo(
            f"{found.deleted_bytes / 1e9:.3g} GB last used before this command began were deleted to make "
            f"room. If another share kept them, set EVID_CACHE_GB higher: it must hold all shares."
        )
    if found.outcomes["no_room"]:
        click.echo("The cache is full. Set EVID_CACHE_GB higher, or prepare with --inputs-only.")
