"""Changes in the console: their kinds, plans, dry runs and pages."""
