from evidcore.testing.fixtures import offered as offered
from evidcore.testing.fixtures import real_data as real_data
