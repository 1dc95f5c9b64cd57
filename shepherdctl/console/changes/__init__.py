"""What the console changes: the kinds of change, their plans, their dry runs, and their pages."""
