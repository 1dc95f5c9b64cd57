"""Agents' reports, and installation requests."""
