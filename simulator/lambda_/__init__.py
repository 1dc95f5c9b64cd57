"""The functions as Lambda runs them: warm processes, concurrency limits, enforced timeouts."""
