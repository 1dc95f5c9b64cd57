"""The agent: takes over a machine, reports that it is alive, and installs operating systems."""

__version__ = "1.0.0"
