from evidcore_testing.fixtures import evid as evid
from evidcore_testing.fixtures import offered as offered
from evidcore_testing.fixtures import real_data as real_data
