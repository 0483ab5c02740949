from evidcore.testing.fixtures import real_data as real_data
