import pytest
from evidcore_plugin_phantoms.slices import PhantomSlices


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    """Give slices with a lesion each, and masks."""
    phantoms = PhantomSlices(
        tmp_path_factory.mktemp("cache"), train_cases=6, validation_cases=0, test_cases=0
    )
    return list(phantoms.cases("train"))
