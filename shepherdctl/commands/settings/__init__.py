"""The commands on the settings: ``shepherdctl settings``."""
