"""Heartbeats through a neighbour: the relay, and its clients."""
