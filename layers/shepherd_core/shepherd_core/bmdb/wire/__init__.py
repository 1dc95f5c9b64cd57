"""The way to the PostgreSQL server, and the state of the server itself."""
