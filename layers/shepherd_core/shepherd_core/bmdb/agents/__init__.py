"""What agents report, and the installations that are requested of them."""
