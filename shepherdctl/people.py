"""The people who use a deployment. Each may do what the one before may; ``main`` says whose each command is."""

from enum import StrEnum

from shepherd_core.settings.functions.bmdb import OPERATOR, READER


class Person(StrEnum):
    """A kind of person; readers and operators log in to the BMDB with the role of this name."""

    ANYBODY = "anybody"
    """Works without a deployment."""
    READER = READER
    """Sees everything but secrets, and changes nothing."""
    OPERATOR = OPERATOR
    """Acts on machines, and asks their provider."""
    ADMINISTRATOR = "administrator"
    """Deploys, and has every secret."""
