"""Weeks of a fleet in minutes: real loops, agent API and PostgreSQL by a simulated clock, with machines in memory."""
