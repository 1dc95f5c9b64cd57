"""A whole simulated environment: provider, machines, agents, AWS, database, schedules and faults."""
