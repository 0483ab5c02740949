from evidcore.testing.fixtures import written as written
