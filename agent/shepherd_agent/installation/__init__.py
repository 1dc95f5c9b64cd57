"""Installations that operators request."""
