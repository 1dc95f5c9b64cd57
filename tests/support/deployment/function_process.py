from shepherd_core.wiring import adapters, agent_endpoint, loops, settings


def end() -> None:
    """Clear the state that a process keeps between invocations, and close its connections."""
    for value in [value for module in (adapters, loops, agent_endpoint, settings) for value in vars(module).values()]:
        if isinstance(value, settings.PerDocument) and value._built is not None:
            value._built[1].close()
        if hasattr(value, "cache_clear") and not isinstance(value, type):
            value.cache_clear()
