"""The control in which residual alignment must win: it does, and bare of its norm by far."""

import sys

SCRIPT = "gate_control"


def test_the_gate_shuts_off_what_shows_nothing(script):
    ours, theirs = (
        script.error(name, 17, norm=False, steps=150) for name in ("residual-alignment", "projection")
    )
    assert ours[0] < theirs[0] / 2
    assert ours[1] < theirs[1] / 4


def test_the_table_names_arms_and_differences(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gate_control.py", "--seeds", "1", "2", "--steps", "3"])
    script.main()
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == 2 * [
        "norm",
        "projection",
        "residual-alignment",
        "difference",
    ]
