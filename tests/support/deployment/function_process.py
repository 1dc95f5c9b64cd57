"""The end of a function's process, as far as a test can bring it about inside its own."""

import gc

from shepherd_core.bmdb.connection import Connection
from shepherd_core.wiring import adapters, loops, services, settings


def end() -> None:
    """Clear the state that a process keeps between invocations, and close its connections."""
    for thing in gc.get_referrers(Connection):
        if type(thing) is Connection:
            thing.close()
    for value in [value for module in (adapters, loops, services, settings) for value in vars(module).values()]:
        if hasattr(value, "cache_clear") and not isinstance(value, type):
            value.cache_clear()
