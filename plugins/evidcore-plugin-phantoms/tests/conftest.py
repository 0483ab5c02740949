import functools

import pytest
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen
from evidcore_plugin_phantoms.chest import PhantomChest
from evidcore_plugin_phantoms.slices import PhantomSlices
from evidcore_testing.fixtures import real_data as real_data


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def chest(cache):
    """Return a function that makes a small set; it takes other options."""
    sizes = {"train_cases": 6, "validation_cases": 5, "test_cases": 24, "questions_per_finding": 4}
    return functools.partial(PhantomChest, cache, **sizes)


@pytest.fixture(scope="session")
def abdomen(cache):
    """Return a function that makes a small set; it takes other options."""
    sizes = {"train_cases": 5, "validation_cases": 3, "test_cases": 20, "queries_per_case": 12}
    return functools.partial(PhantomAbdomen, cache, **sizes, prevalence=0.45, size_zyx=(24, 48, 64))


@pytest.fixture(scope="session")
def slices(cache):
    """Return a function that makes a small set; it takes other options."""
    return functools.partial(PhantomSlices, cache, train_cases=6, validation_cases=3, test_cases=24)
