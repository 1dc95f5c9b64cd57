"""Machines as providers list them: created, updated, released, forgotten."""
