"""What providers say of machines: created, updated, released, forgotten."""
