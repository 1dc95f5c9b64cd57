"""The commands that run Shepherd in a simulated environment: ``demo`` and ``simulate``."""
