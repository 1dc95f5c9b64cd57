"""The output of commands: tables and messages, log lines, the live view, and the formats of values."""
