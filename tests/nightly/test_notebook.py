"""The notebook of the documentation, its cells executed in order in a fresh interpreter.

No kernel is installed here: a cell runs as IPython runs it, its last expression shown by `_repr_html_`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "howto" / "python.ipynb"
KERNEL = """
import ast, json, sys

names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] != "code":
        continue
    body = ast.parse("".join(cell["source"])).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        print("SHOWN " + json.dumps(value._repr_html_()))
"""


@pytest.mark.slow
def test_the_notebook_runs_a_recipe_and_shows_its_tables(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, NOTEBOOK], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("SHOWN ")]
    assert "notebook</b> finished" in shown[0]
    assert "page/index.html" in shown[0]
    for table, word in zip(
        shown, ("strict_accuracy",) * 2 + ("mean", "reward/format", "02-grpo"), strict=True
    ):
        assert "<table" in table
        assert word in table
    (folder,) = (tmp_path / "runs" / "notebook").glob("2*")
    assert (folder / "page" / "index.html").is_file()


def test_the_notebook_holds_no_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
