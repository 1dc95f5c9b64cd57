"""The BMDB: the database that holds all state, and the only place where pg8000 is imported."""
