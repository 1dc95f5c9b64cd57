"""The error of a refused takeover."""


class AgentRefusal(Exception):
    """The agent does not take over the machine; the text is sent to Shepherd, so it must not contain a secret."""
