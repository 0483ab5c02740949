from evidcore_plugin_phantoms.testing import small_run as small_run
from evidcore_testing.fixtures import evid as evid
