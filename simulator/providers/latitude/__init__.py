"""Latitude.sh, simulated."""
