"""The agent that takes over a machine and then reports that it is alive."""

__version__ = "0.1.0"
