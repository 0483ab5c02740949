"""The settling test under every option of the reward, and its plot."""

from evidcore_plugin_emrl.settling import OracleReader
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen

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


def test_the_gold_answers_are_paid_under_every_option(script, tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path))
    counts = {"train_cases": 0, "validation_cases": 0, "test_cases": 12, "queries_per_case": 0}
    cases = list(PhantomAbdomen(tmp_path, size_zyx=(20, 48, 64), prevalence=0.3, **counts).cases("test"))
    settling = script.paid(cases, OracleReader(cases, tmp_path), slices=20)
    assert len({(some.sensitivity, some.specificity, some.looks) for some in settling.values()}) == 1
    pays = script.figures(settling)["pays"]
    assert pays["right"].keys() == {str(cell) for cell in script.CELLS}
    assert pays[script.FALSE].keys() == {name for name in pays["right"] if "bound to the finding" in name}
    lines = script.tables(settling)
    assert sum(line.startswith("contradicting ") for line in lines) == 4
    assert sum("settling: contradicting " in line for line in lines) == 4
