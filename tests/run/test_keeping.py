from pathlib import Path

from evidcore.run.keeping import keep_run, without_places


def test_a_kept_run_has_results_recipe_and_lock_and_nothing_else(tmp_path):
    run = tmp_path / "project" / "runs" / "one"
    for folder in ("results", "answers", "rollouts", "checkpoints"):
        (run / folder).mkdir(parents=True)
        (run / folder / "03-sft.jsonl").write_text("a report")
    (run / "results" / "03-sft.json").write_text('{"rows": []}')
    (run / "lock.toml").write_text(
        f'path = "{tmp_path}/project/recipes/x.toml"\nfolder = "{tmp_path}/project"\n'
    )
    keep_run(run, tmp_path / "kept", tmp_path / "project")
    assert {file.name for file in (tmp_path / "kept").iterdir()} == {"03-sft.json", "lock.toml"}
    assert (tmp_path / "kept" / "lock.toml").read_text() == 'path = "recipes/x.toml"\nfolder = "."\n'


def test_the_home_folder_is_written_as_a_tilde(tmp_path):
    text = f'a = "{Path.home()}/scans/ct"\nb = "{Path.home()}"\nc = "/elsewhere/ct"\n'
    assert without_places(text, tmp_path) == 'a = "~/scans/ct"\nb = "~"\nc = "/elsewhere/ct"\n'
