from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any


def allows(statements: Iterable[Mapping[str, Any]], action: str, resource: str, **context: str | list[str]) -> bool:
    """Return whether one of *statements* allows *action* on *resource*; *context*: condition keys, ``ec2_Subnet``."""
    known = {key.replace("_", ":", 1): listed(value) for key, value in context.items()}
    return any(
        any(fnmatchcase(action, pattern) for pattern in listed(statement["Action"]))
        and any(fnmatchcase(resource, pattern) for pattern in listed(statement["Resource"]))
        and _holds(statement.get("Condition", {}), known)
        for statement in statements
        if statement["Effect"] == "Allow"
    )


def _holds(conditions: Mapping[str, Mapping[str, Any]], known: Mapping[str, list[str]]) -> bool:
    for operator, wanted in conditions.items():
        for key, values in wanted.items():
            found = known.get(key, [])
            if operator in {"StringEquals", "Bool"}:
                fits = len(found) == 1 and found[0] in listed(values)
            elif operator == "StringNotEquals":  # holds, too, where the key is missing
                fits = set(found).isdisjoint(listed(values))
            elif operator == "ArnLike":
                fits = len(found) == 1 and any(fnmatchcase(found[0], pattern) for pattern in listed(values))
            elif operator == "ForAllValues:StringEquals":
                fits = set(found) <= set(listed(values))
            elif operator == "Null":
                fits = (not found) is (values == "true")
            else:
                raise NotImplementedError(operator)
            if not fits:
                return False
    return True


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
