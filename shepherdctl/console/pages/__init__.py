"""The pages of the console: the facts that each shows, and their HTML."""
