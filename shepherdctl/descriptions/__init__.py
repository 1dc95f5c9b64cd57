"""Descriptions of what the BMDB holds and of the settings, in words and as JSON, for the commands and the console."""
