"""A world to run Shepherd in: a provider, machines, agents, schedules. Never deployed."""
