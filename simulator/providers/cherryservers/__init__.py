"""Cherry Servers, simulated."""
