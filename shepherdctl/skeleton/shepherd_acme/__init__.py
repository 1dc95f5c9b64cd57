"""Machines of Acme for Shepherd."""
