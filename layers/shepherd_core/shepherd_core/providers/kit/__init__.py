"""Parts that the adapters share: HTTP with JSON, machine lists, registered SSH keys."""
