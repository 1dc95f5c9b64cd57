"""The two ends of the conversation with agents: the takeover over SSH, and the endpoint they report to."""
