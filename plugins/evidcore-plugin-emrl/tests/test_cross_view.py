"""Reward `cross-view`, worked by hand with readers that are told what to see."""

import pytest
from disc_cases import disc_case
from evidcore_plugin_emrl.cross_view import CrossView
from evidcore_plugin_emrl.matched_slices import MatchedSlices
from evidcore_plugin_emrl.report_evidence import ReportEvidence

from evidcore.builtin.labelers import NegationRules
from evidcore.builtin.views import Slices
from evidcore.case import Rollout, Score, Unscored
from evidcore.contracts import Reader
from evidcore.errors import DataError
from evidcore.testing import check_reward
from evidcore.volume import read_mask
from evidcore.volume.reading import read


def square(side, at=4):
    return slice(at, at + side), slice(at, at + side)


CYST = {1: square(4), 2: square(6)}  # 16 and 36 pixels
STONE = {2: square(3, 20), 3: square(6, 20)}  # 9 and 36
BOTH, CYST_ALONE, STONE_ALONE, NEITHER = 2, 1, 3, 5  # slices of the sick case


class TrueEyes(Reader):
    """Names what masks show on a slice; `instead` puts other words in place."""

    deterministic = True

    def __init__(self, cases, *, blank=(), text=None, instead=None):
        self.cases = {case.volumes[0].path: case for case in cases}
        self.blank, self.text, self.instead = blank, text, instead or {}
        self.asked = []

    def __call__(self, questions):
        self.asked += questions
        return [self.answer(question) for question in questions]

    def answer(self, question):
        if not question.crops:
            return self.text
        (crop,) = question.crops
        case, z = self.cases[crop.volume.path], crop.box_zyx[0]
        if crop.blank:
            return said(self.blank)
        if (case.id, z) in self.instead:
            return self.instead[case.id, z]
        volume = read(crop.volume)
        return said(name for name, mask in case.masks.items() if read_mask(mask, like=volume)[z].any())


def said(names):
    return " ".join(f"There is a {name}." for name in names) or "No finding is seen."


def report(*names):
    return " ".join(f"There is a {name}." for name in names) or "No cyst is seen."


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A sick case, a healthy one, and three others: cyst, stone and cyst, nothing."""
    folder = tmp_path_factory.mktemp("cross-view")
    return {
        "sick": disc_case(folder, 1, ["cyst", "stone"], where={"cyst": CYST, "stone": STONE}),
        "healthy": disc_case(folder, 2, []),
        "cysts": disc_case(folder, 3, ["cyst"], where={"cyst": {1: square(4), 2: square(6)}}),
        "stones": disc_case(folder, 4, ["stone"], where={"stone": {2: square(6), 4: square(3)}}),
        "cyst alone": disc_case(folder, 5, ["cyst"], where={"cyst": {3: square(5)}}),
    }


@pytest.fixture
def judge(world, tmp_path):
    """Return the verdict on a report and its evidence."""

    def make(
        case="sick", text=("cyst", "stone"), evidence='{"slice": 2}', *, cite="report", reader=None, **options
    ):
        options.setdefault("control", "none")
        cases = list(world.values())
        reader = reader or TrueEyes(cases)
        reward = CrossView(lambda: cases, tmp_path, reader=reader, **options)
        task = ReportEvidence(tmp_path, cite=cite)
        (prompt,) = task.prompts(world[case], Slices(slices=6), 0)
        completion = f"<report>{report(*text)}</report><evidence>{evidence}</evidence>"
        answer = task.parse(prompt, completion)
        (verdict,) = reward([Rollout(prompt=prompt, group=0, text=completion, answer=answer)], {})
        if isinstance(verdict, Score):
            assert reward.bounds[0] <= verdict.value <= reward.bounds[1]
        return verdict

    return make


def at(z):
    return f'{{"slice": {z}}}'


@pytest.mark.parametrize(
    ("z", "whole", "local"),
    [(BOTH, 1.0, 1.0), (CYST_ALONE, 2 / 3, 1.0), (STONE_ALONE, 2 / 3, 1.0), (NEITHER, 0.0, 0.0)],
)
def test_a_slice_is_paid_by_what_is_seen_on_it(judge, z, whole, local):
    assert judge(evidence=at(z)).value == pytest.approx(whole)
    assert judge(evidence=at(z), agreement="local").value == pytest.approx(local)


def test_a_contradicting_slice_of_another_lesion_type_is_paid_nothing(judge):
    """The case of cysts alone names the stone: what a reader takes for one on its slice 5."""
    reader = {("case-3", 5): "There is a stone."}
    for agreement in ("whole", "local"):
        found = judge("cysts", ["cyst"], at(5), reader=seeing(judge, reader), agreement=agreement)
        assert (found.value, found.reason) == (0.0, "on slice 5 is seen: stone")


def test_what_is_seen_beside_the_truth_costs(judge):
    reader = {("case-3", 2): "There is a cyst. There is a stone."}
    for agreement, value in (("whole", 2 / 3), ("local", 1 / 2)):  # 2·1/(1 + 2); 1/2
        found = judge("cysts", ["cyst"], at(2), reader=seeing(judge, reader), agreement=agreement)
        assert found.value == pytest.approx(value)


def seeing(judge, instead=None, **options):
    world = judge.__closure__  # the fixture's cases
    cases = next(cell.cell_contents for cell in world if isinstance(cell.cell_contents, dict))
    return TrueEyes(cases.values(), instead=instead, **options)
