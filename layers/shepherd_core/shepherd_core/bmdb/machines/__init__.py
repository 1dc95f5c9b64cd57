"""Facts about machines, the due index, pauses, and operators' queries."""
