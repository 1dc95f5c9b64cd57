"""The hardware report."""
