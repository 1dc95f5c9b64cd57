"""Machines as a whole: the due index, pauses, and what operators look up, search and count."""
