"""Shepherd: creates bare-metal machines at a provider, starts an agent on each, and repairs unhealthy ones."""
