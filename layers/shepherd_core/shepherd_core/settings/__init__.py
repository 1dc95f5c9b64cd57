"""The settings: one type for each function and each provider, read from environment variables."""
