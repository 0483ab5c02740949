from pathlib import Path

from evidcore_plugin_lab.ablation import without_places


def test_paths_below_the_root_are_relative_and_the_home_folder_is_a_tilde(tmp_path):
    text = f'a = "{tmp_path}/recipes/x.toml"\nb = "{tmp_path}"\nc = "/elsewhere/ct"\n'
    assert without_places(text, tmp_path) == 'a = "recipes/x.toml"\nb = "."\nc = "/elsewhere/ct"\n'
    text = f'a = "{Path.home()}/scans/ct"\nb = "{Path.home()}"\n'
    assert without_places(text, tmp_path) == 'a = "~/scans/ct"\nb = "~"\n'
