"""What a run prints of its results."""

from __future__ import annotations

import json

from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.case import Case, Question
from evidcore.cli.summary import summary
from evidcore.evaluate.reference_lines import reference_lines
from evidcore.page.tables import result_table
from evidcore.run.folder import RunFolder


def test_a_line_that_is_not_known_is_said_to_be_so(tmp_path):
    side = Question(id="q", text="Which side?", options=("left", "right"), answer=1)
    case = Case(id="a", patient="p", volumes=(), questions=(side,))
    prompts = Choice().prompts(case, Volume(), 0)
    lines = reference_lines(prompts, prompts)
    result = {
        "stage": "evaluate",
        "rows": [row.to_json() for row in lines.rows("choice")],
        "reference_lines": {"choice": lines.figures()},
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "evaluate.json").write_text(json.dumps(result))
    (said,) = summary(RunFolder(tmp_path))["lines"]
    assert said.endswith(
        "reference lines: uniform chance 50.0 %, prior only 100.0 %, perfect perception not known"
    )
    assert "which other options are true is not known" in result_table(result)
