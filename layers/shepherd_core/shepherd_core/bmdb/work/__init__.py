"""Claims on machines, the ways to end them, and the history of both."""
