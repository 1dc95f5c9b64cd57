"""The functions and their settings."""
