"""What an invocation keeps of its time, in seconds."""

CLOSING_SECONDS = 2.0
"""For closing the session and writing the metrics."""

MARGIN_SECONDS = 5.0
"""For committing, closing, and threads that are slow to notice their deadline."""

NOTIFY_SECONDS = 15.0
"""For a message to operators. An invocation that has less left leaves it to the next one, of any loop."""

CREATE_SECONDS = 60.0
"""For one creation at the provider."""

ANSWER_SECONDS = 30.0
"""For the Migrator's answer to CloudFormation."""

FLOOR_SECONDS = 120
"""How far the floor of the due rows stays behind the present (session.sql); no transaction may last so long."""

RENEWALS = 3
"""How often a session is renewed in the time after which it would expire."""
