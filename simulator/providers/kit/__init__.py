"""Parts that the simulated APIs share."""
