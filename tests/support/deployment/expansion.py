"""What CloudFormation makes of Fn::ForEach in our templates, before anything else is resolved."""

import re
from collections.abc import Mapping
from typing import Any

_LOOP = "Fn::ForEach::"


def expanded(value: Any, names: Mapping[str, str] | None = None) -> Any:
    """
    Return a part of a template with every ``Fn::ForEach`` written out.

    *names* holds the values of the loops around it. They are put into keys,
    ``Ref`` and ``Fn::Sub``, and into no other text: CloudFormation, too, leaves
    the condition of ``Fn::If`` as it is.
    """
    names = names or {}
    if isinstance(value, list):
        return [expanded(inner, names) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"Ref"}:
        referred = expanded(value["Ref"], names)
        return names.get(referred, {"Ref": referred})
    if value.keys() == {"Fn::Sub"}:
        return _sub(value["Fn::Sub"], names)
    found: dict[Any, Any] = {}
    for key, inner in value.items():
        for each, content in _looped(inner, names) if str(key).startswith(_LOOP) else [(key, expanded(inner, names))]:
            name = _filled(each, names)
            if name in found:
                raise ValueError(f"{name} stands there twice")
            found[name] = content
    return found


def _looped(loop: list[Any], names: Mapping[str, str]) -> list[tuple[str, Any]]:
    identifier, collection, fragment = loop
    return [pair for item in collection for pair in expanded(fragment, {**names, identifier: item}).items()]


def _filled(text: Any, names: Mapping[str, str]) -> Any:
    return re.sub(r"\$\{(\w+)\}", lambda match: names.get(match[1], match[0]), text) if isinstance(text, str) else text


def _sub(argument: Any, names: Mapping[str, str]) -> Any:
    if isinstance(argument, list):
        text, own = argument
        return {"Fn::Sub": [_filled(text, names), expanded(own, names)]}
    filled = _filled(argument, names)
    return filled if names and "${" not in filled else {"Fn::Sub": filled}
