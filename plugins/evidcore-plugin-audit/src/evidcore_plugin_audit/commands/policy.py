"""`evid audit policy`: is a score earned by the pixels?"""

import json
from pathlib import Path

import click

from evidcore.errors import RunError


@click.command()
@click.argument("target", metavar="RUN_OR_RECIPE", type=click.Path(path_type=Path))
@click.option("--answers", type=click.Path(path_type=Path), help="A file of answers to what --key prepared.")
@click.option("--key", type=click.Path(path_type=Path), help="What `evid audit prepare` left behind.")
@click.option("--model", default="", metavar="FOLDER_OR_ID", help="A model's folder, or owner/name@commit.")
@click.option("--stage", default="", help="With --model, which stage of the recipe asks: 05-audit, or 5.")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="With --model, change a key.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True,
    help="Where runs lie, of an audit from a recipe.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=0), default=0, help="Cases per data entry; 0 = all.")
@click.option(
    "--fail-under", type=float, metavar="POINTS",
    help="Exit 1 where the lower bound of own minus the best that does not look is below, for any task.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policy(
    target: Path, answers: Path | None, key: Path | None, model: str, stage: str,
    overrides: tuple[str, ...], out: Path, limit: int, fail_under: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Ask a model the same questions over the right, another patient's and blank volumes.

    The model is that of a finished run; or, with a recipe, one that was not trained here.
    """
    from evidcore.cli.summary import summary
    from evidcore.hooks import write_pages
    from evidcore.runs.folder import open_run
    from evidcore_plugin_audit.external import audit_answers, audit_model
    from evidcore_plugin_audit.post_run import audit_run

    _refuse_mixed(target, answers, key, model, stage, overrides, limit)
    if answers is not None and key is not None:
        run, result = audit_answers(target, answers, key, out)
    elif model:
        run, result = audit_model(target, model, out, overrides, stage=stage, limit=limit)
    else:
        run = open_run(target)
        result = audit_run(run, limit=limit)
    write_pages(run.path)
    is_new = answers is not None or bool(model)
    if as_json:
        click.echo(json.dumps({**result, **({"run": str(run.path)} if is_new else {})}, indent=1))
    else:
        for line in [*summary(run, only=result["stage"])["lines"], *([f"run: {run.path}"] if is_new else [])]:
            click.echo(line)
    if fail_under is not None:
        gains = {row["name"]: row for row in result["rows"] if row["metric"] == "own_minus_blind"}
        for task in result["verdict"] or [result["stage"]]:
            low = gains.get(task, {}).get("low")
            if low is None or not 100 * low >= fail_under:
                bound = "has no interval" if low is None else f"has the lower bound {100 * low:+.1f} points"
                what = f"{task}: own minus the best that does not look {bound}; {fail_under:+.1f} is asked"
                click.echo(what, err=True)
                raise click.exceptions.Exit(1)


def _refuse_mixed(
    target: Path, answers: Path | None, key: Path | None, model: str, stage: str,
    overrides: tuple[str, ...], limit: int,
) -> None:  # fmt: skip
    """Refuse options that do not go together."""
    outside = answers is not None or key is not None or bool(model)
    if outside and target.is_dir():
        raise RunError(f"{target}: a folder. Answers and models from outside are audited by a recipe's file.")
    if not outside and target.is_file():
        raise RunError(f"{target}: recipes say what is asked, not who. Give --answers and --key, or --model.")
    if model and (answers is not None or key is not None):
        raise RunError("--model is asked here, --answers were given elsewhere. Give one of them.")
    if (answers is None) != (key is None):
        raise RunError("--answers and --key go together. `evid audit prepare` writes the key.")
    if answers is not None and (stage or overrides or limit):
        raise RunError("--stage, --set and --limit are in the key. Leave them out with --answers.")
    if not outside and (stage or overrides):
        raise RunError("--stage and --set go with --model. A run's audit asks what its last evaluation did.")
