"""The commands on machines: ``shepherdctl machine``."""
