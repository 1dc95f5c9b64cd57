"""A simulated environment to run Shepherd in: a provider, machines, agents, schedules. Never deployed."""
