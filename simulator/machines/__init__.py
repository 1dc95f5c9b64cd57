"""Simulated machines: real SSH servers that run what is uploaded to them."""
