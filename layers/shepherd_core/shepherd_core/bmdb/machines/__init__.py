"""Facts about machines, pauses, and what operators ask about them."""
