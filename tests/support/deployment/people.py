from typing import Any

from shepherdctl.people import Person
from tests.support.deployment.deployments import BUCKET, Stack, stack_of

PEOPLE = (Person.READER, Person.OPERATOR, Person.ADMINISTRATOR)


def stack(**answers: str) -> Stack:
    """Return the stack of the people of a deployment, ec2's unless *answers* say otherwise."""
    return stack_of({"Bucket": BUCKET, "Provider": "ec2", **answers}, "templates/people.yaml")


def own_statements(person: Person, **answers: str) -> list[dict[str, Any]]:
    policy = stack(**answers).resources[person.capitalize()]["Properties"]["PolicyDocument"]
    found: list[dict[str, Any]] = policy["Statement"]
    return found


def statements(person: Person, **answers: str) -> list[dict[str, Any]]:
    """Return the statements of all policies that such a person has: they add up."""
    kinds = PEOPLE[: PEOPLE.index(person) + 1]
    return [statement for each in kinds for statement in own_statements(each, **answers)]
