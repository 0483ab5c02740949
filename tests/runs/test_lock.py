from evidcore.runs.inputs import named


def test_the_data_set_that_another_stands_on_counts_too():
    table = {"use": "mask-questions", "source": {"use": "implant", "source": {"use": "folder", "path": "."}}}
    assert [offer.name for offer in named("dataset", table)] == ["mask-questions", "implant", "folder"]


def test_a_component_inside_a_table_is_found_by_its_kind():
    table = {"use": "report-consistency", "scorer": {"use": "findings-f1"}}
    assert [(offer.kind, offer.name) for offer in named("reward", table)] == [
        ("reward", "report-consistency"),
        ("scorer", "findings-f1"),
    ]
