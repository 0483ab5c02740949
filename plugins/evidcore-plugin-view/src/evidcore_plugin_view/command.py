"""`evid view`: the evidence viewer."""

import json
import tempfile
from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("run2", metavar="RUN2", required=False, type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), help="Where to listen; 8765, or any if that is taken.")
@click.option("--show-reports", is_flag=True, help="Show real patients' reports too.")
@click.option("--open/--no-open", "opens", default=True, show_default=True, help="Open a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the address.")
def view(
    folder: Path, run2: Path | None, port: int | None, show_reports: bool, opens: bool, as_json: bool
) -> None:
    """Look at every answer and every rollout of RUN, beside its scan; with RUN2, at both side by side.

    A server for this machine alone; Ctrl-C ends it. A run may still train while it is looked at.
    """
    from evidcore.errors import RunError
    from evidcore_plugin_view.opened_run import OpenedRun
    from evidcore_plugin_view.server import USUAL_PORT, ViewServer

    folders = {"a": folder, **({"b": run2} if run2 is not None else {})}
    runs = {name: OpenedRun(path, show_reports=show_reports) for name, path in folders.items()}
    try:
        server = ViewServer(runs, port=USUAL_PORT if port is None else port)
    except RunError:
        if port is not None:
            raise
        server = ViewServer(runs, port=0)
    try:
        told = {"address": server.address}
        click.echo(json.dumps(told) if as_json else f"view: {server.address}\nEnd with Ctrl-C.")
        with tempfile.TemporaryDirectory(prefix="evid-view-") as private:  # of mode 0700
            if opens:  # a file: arguments, which could hold the address, are seen by all users of the machine
                page = Path(private) / "open.html"
                page.touch(0o600)
                page.write_text(
                    f'<meta http-equiv="refresh" content="0; url={server.address}">'
                    f'<a href="{server.address}">evid view</a>\n'
                )
                click.launch(str(page))
            server.serve_forever()
    except KeyboardInterrupt:
        click.echo("", err=True)
    finally:
        server.server_close()
        for run in runs.values():
            run.close()
