from evidcore_testing.fixtures import evid as evid
