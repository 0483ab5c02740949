from evidcore.testing.fixtures import copied_run as copied_run
from evidcore.testing.fixtures import evid as evid
from evidcore.testing.fixtures import small_run as small_run
