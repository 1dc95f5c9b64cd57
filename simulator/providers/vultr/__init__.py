"""Vultr's bare metal, simulated."""
