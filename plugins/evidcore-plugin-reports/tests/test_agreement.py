import pytest
from evidcore_plugin_reports.agreement import affirmed, compare_findings

from evidcore.api import Finding


def test_what_is_present_anywhere_is_affirmed_once_in_the_order_of_mention():
    names = ("emphysema", "lung nodule", "cardiomegaly", "emphysema", "lung nodule")
    states = ("uncertain", "present", "absent", "present", "absent")
    said = [Finding(name=name, state=state) for name, state in zip(names, states, strict=True)]
    assert affirmed(said) == ("emphysema", "lung nodule")
    assert affirmed([]) == ()


LEFT_CYST = Finding(name="cyst", side="left")
RIGHT_CYST = Finding(name="cyst", side="right")


@pytest.mark.parametrize(
    ("candidate", "reference", "expected"),
    [
        ([LEFT_CYST], [LEFT_CYST], (("cyst",), (), ())),
        ([RIGHT_CYST], [LEFT_CYST], ((), ("cyst",), ("cyst",))),
        ([LEFT_CYST, RIGHT_CYST], [LEFT_CYST], ((), ("cyst",), ("cyst",))),  # both sides are another answer
        ([Finding(name="cyst")], [LEFT_CYST], ((), ("cyst",), ("cyst",))),  # no side is said
        ([RIGHT_CYST], [Finding(name="cyst")], (("cyst",), (), ())),  # none is known
        ([RIGHT_CYST], [Finding(name="cyst", side="left", state="absent")], ((), ("cyst",), ())),
        ([Finding(name="cyst", side="left", malignant=True)], [LEFT_CYST], (("cyst",), (), ())),
    ],
)
def test_details_must_agree_where_they_are_asked_for(candidate, reference, expected):
    result = compare_findings(candidate, reference, details=("side",))
    assert (result.both, result.extra, result.missed) == expected
    names = compare_findings(candidate, reference)
    assert bool(names.both) == (reference[0].state == "present")
