"""Simulated provider APIs, one for each vendor."""
