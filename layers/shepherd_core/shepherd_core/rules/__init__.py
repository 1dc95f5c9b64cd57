"""The decisions, as pure functions: what to create, what has drifted, how to recover, when to stop."""
