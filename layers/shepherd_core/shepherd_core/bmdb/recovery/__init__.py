"""Recovery in the BMDB: attempted steps, quarantine, and where recovery is suspended."""
