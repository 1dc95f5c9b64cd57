"""Why the agent does not take over."""


class Refusal(Exception):
    """The machine cannot be taken over; the text goes back to whoever asked, so it holds no secret."""
