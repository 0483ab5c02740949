"""Components in processes of their own: `isolated = true` in the table of a reward, a scorer or a reader.

A fence against what goes wrong in somebody's code: it hangs, takes all memory, exits, or writes into what
others judge by. It is no sandbox: docs/howto/isolation.md says what passes it.
"""

from evidcore_plugin_hub.isolation.components import isolate
from evidcore_plugin_hub.isolation.limits import Isolated, check, resolved
from evidcore_plugin_hub.isolation.process import network_blocked
from evidcore_plugin_hub.worker import workers_ended

__all__ = ["Isolated", "check", "isolate", "network_blocked", "resolved", "workers_ended"]
