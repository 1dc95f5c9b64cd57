"""Descriptions of what the BMDB holds, in words and as JSON; the commands and the console share them."""
