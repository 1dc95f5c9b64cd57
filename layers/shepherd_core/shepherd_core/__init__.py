"""Shepherd: takes bare-metal machines from a provider's capacity to a running agent, and keeps them there."""
