"""Answers of HTTP servers, bounded in size and time."""
