"""Scaleway's Elastic Metal, simulated."""
