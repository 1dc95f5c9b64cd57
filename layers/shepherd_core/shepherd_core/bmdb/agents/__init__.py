"""The reports of agents, installation requests, and the SSH host keys by which machines are known."""
