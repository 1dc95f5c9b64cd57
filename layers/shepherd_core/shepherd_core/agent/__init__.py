"""The communication with agents: the takeover over SSH, and the API that they report to."""
