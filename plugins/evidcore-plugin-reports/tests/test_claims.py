"""An audit of reports claims sight of each finding by itself."""

import pytest
from planted_reports import NAMES, NEVER, SEEN, Looker, World, Writer, audited


def test_what_a_looker_sees_is_told_and_nothing_else():
    result, kinds = audited(Looker, 3)
    seen = [name for name in sorted(NAMES) if kinds[name] == "seen"]
    assert {*seen} <= SEEN
    assert len(seen) >= 10
    assert result.verdict().startswith(f"Of 18 findings {len(seen)} seen ({', '.join(seen)}), ")
    assert "Of all findings together: +" in result.verdict()
    rows = {row.metric: row for row in result.rows()}
    assert rows["findings_seen"].value == len(seen) / 18
    fall = rows[f"own_minus_twin/{seen[0]}"]
    assert fall.value > 0.5
    assert fall.extra["p_holm"] < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("policy", NEVER)
def test_no_report_that_is_written_without_a_look_is_told_to_see(policy):
    _, kinds = audited(policy, 4)
    assert not {name for name, kind in kinds.items() if kind.startswith("seen")}


@pytest.mark.slow
def test_what_a_cue_gives_away_beside_sight_is_seen_in_part():
    class Both(Looker):
        """Sees less, and affirms half of what the kind of patient has."""

        def affirmed(self, path, is_odd, words):
            kind = (
                []
                if is_odd
                else [name for index, name in enumerate(NAMES) if index % 2 == self.world.kind[path]]
            )
            cued = {name for name in kind if self.draw(path, name) < 0.45}
            return {*super().affirmed(path, is_odd, words), *cued}

    _, kinds = audited(Both, 4)
    assert [*kinds.values()].count("seen in part") >= 1
    assert "seen" not in {kinds[name] for name in NAMES if name not in SEEN}


@pytest.mark.slow
def test_without_twins_no_finding_is_told_to_be_seen(monkeypatch):
    monkeypatch.setattr(World, "without", lambda *_: None)
    result, kinds = audited(Looker, 3)
    assert not {kind for kind in kinds.values() if kind.startswith("seen")}
    assert "0 seen" not in result.verdict()


def test_policies_of_this_world_write_what_they_mean():
    world = World(30, 1)
    [first, *_] = world.prompts()
    text = Writer.generate(Looker(world, None), [first.with_blank_volumes()], max_new_tokens=9)[0]
    assert text.count("There is") < 6
