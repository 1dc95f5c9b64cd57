"""The BMDB: sessions, claims, history, pauses, and everything else that is kept in PostgreSQL."""
