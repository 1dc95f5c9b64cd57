"""Equinix Metal."""
