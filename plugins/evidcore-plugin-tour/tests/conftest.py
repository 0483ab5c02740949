from __future__ import annotations

from evidcore.testing.fixtures import evid as evid
