from evidcore_testing.fixtures import written as written
