"""The plot of the settling test: conditions, both agreements, and what perfect eyes are paid."""

SCRIPT = "settling"


def pay(value, *, low=None, high=None, eyes=None):
    return {"value": value, "low": low, "high": high, "pairs": 40, "eyes": eyes}


def test_every_condition_that_was_paid_is_drawn(script, tmp_path):
    pays = {
        name: {str(cell): pay(0.1, low=0.05, high=0.15, eyes=0.2) for cell in script.CELLS}
        for name in ("right", "contradicting")
    }
    pays[script.FALSE] = {str(cell): pay(-0.1) for cell in script.CELLS if cell.bind == "finding"}
    script.draw(pays, tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    for label in ("right", "contradicting", script.FALSE, "pay, bound to the finding", "local"):
        assert f"<!-- {label} -->" in drawn
    assert "<!-- noise -->" not in drawn
    script.draw(pays, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text(encoding="utf-8") == drawn
