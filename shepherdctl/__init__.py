"""The operators' command line. Never deployed."""
