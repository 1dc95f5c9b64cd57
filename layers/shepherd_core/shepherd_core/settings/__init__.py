"""The settings: one type for each function and each provider, read from the environment and the settings document."""
