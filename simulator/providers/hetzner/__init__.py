"""The simulated Robot web service of Hetzner."""
