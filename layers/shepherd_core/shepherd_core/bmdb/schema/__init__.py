"""The schema of the BMDB and its migrations."""
