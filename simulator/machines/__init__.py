"""Simulated machines: real SSH servers that run uploaded programs."""
