"""What agents report, and the installations they are asked for."""
