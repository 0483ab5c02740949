from evidcore.testing.fixtures import evid as evid
from evidcore.testing.fixtures import offered as offered
from evidcore.testing.fixtures import real_data as real_data
