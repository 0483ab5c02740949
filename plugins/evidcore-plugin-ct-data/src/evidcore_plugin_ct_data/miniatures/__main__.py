"""Write a miniature: `python -m evidcore_plugin_ct_data.miniatures NAME FOLDER`."""

from pathlib import Path

import click

from evidcore_plugin_ct_data.miniatures import WRITERS, write


@click.command()
@click.argument("name", type=click.Choice(list(WRITERS)))
@click.argument("folder", type=click.Path(path_type=Path))
def main(name: str, folder: Path) -> None:
    """Write the miniature of the data set NAME into FOLDER."""
    try:
        write(name, folder)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


if __name__ == "__main__":
    main()
