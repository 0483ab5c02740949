import pytest
from evidcore_plugin_phantoms.slices import PhantomSlices
from evidcore_testing.fixtures import language_folder

language = language_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def cases(folder):
    """Give slices with a lesion each, and masks."""
    return list(PhantomSlices(folder, train_cases=6, validation_cases=0, test_cases=0).cases("train"))


@pytest.fixture(scope="session")
def unannotated(folder):
    """Give a slice with a lesion, and no mask."""
    phantoms = PhantomSlices(folder, train_cases=1, validation_cases=0, test_cases=0, annotated=False)
    return next(iter(phantoms.cases("train")))
