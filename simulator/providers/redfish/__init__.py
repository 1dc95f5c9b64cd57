"""Simulated BMCs."""
