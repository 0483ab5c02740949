"""The recall of abnormal sentences keeps the contract of a metric."""

from evidcore_plugin_reports.labelers import NegationRules
from evidcore_testing import check_metric

from evidcore.registry.factory import build


def test_abnormal_recall():
    given = {"labeler": NegationRules()}
    check_metric(build("metric", {"use": "abnormal-recall"}, given=given, where="test"))
