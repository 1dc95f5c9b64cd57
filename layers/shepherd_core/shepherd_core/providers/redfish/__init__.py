"""Machines of your own, through their BMCs."""
