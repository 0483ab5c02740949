from __future__ import annotations

from evidcore_testing.fixtures import evid as evid
