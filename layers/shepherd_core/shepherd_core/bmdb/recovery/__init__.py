"""Recovery: what was tried on a machine, whether too many are unhealthy, and what an operator overrides."""
