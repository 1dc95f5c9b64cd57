"""Machines as a whole: pauses, and what operators look up, search and count."""
