"""Claims on machines, and the ways to end them."""
