"""Hetzner's dedicated servers."""
