"""What CloudFormation makes of a template when its parameters are filled in, as far as our templates go."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

PSEUDO = {
    "AWS::AccountId": "123456789012",
    "AWS::Partition": "aws",
    "AWS::Region": "eu-central-1",
    "AWS::StackId": "arn:aws:cloudformation:eu-central-1:123456789012:stack/shepherd/1234",
    "AWS::StackName": "shepherd",
    "AWS::URLSuffix": "amazonaws.com",
}
_NOTHING = object()


class _Loader(yaml.CSafeLoader):  # type: ignore[misc] # PyYAML publishes no types
    """Reads the short forms of CloudFormation's functions as their long forms."""


def _function(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    name = suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        text = loader.construct_scalar(node)
        return {name: text.split(".", 1) if suffix == "GetAtt" else text}
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    return {name: loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _function)


def read(text: str) -> dict[str, Any]:
    template: dict[str, Any] = yaml.load(text, _Loader)
    return template


def read_file(path: Path) -> dict[str, Any]:
    """Return the template in a file, its loops written out, and below ``Nested`` the templates of its nested stacks."""
    template: dict[str, Any] = expanded(read(path.read_text(encoding="utf-8")))
    template["Nested"] = {
        name: read_file(path.parent / resource["Properties"]["Location"])
        for name, resource in template["Resources"].items()
        if resource["Type"] == "AWS::Serverless::Application"
    }
    return template


class Stack:
    """
    A template with the parameters of one deployment, its nested stacks included.

    A reference to a resource becomes ``<Name>`` or ``<Name.Attribute>``; one to
    a resource that its condition leaves out is a KeyError, as it is refused by
    CloudFormation.
    """

    def __init__(self, template: Mapping[str, Any], answers: Mapping[str, str]) -> None:
        self._template = template
        unknown = answers.keys() - template["Parameters"].keys()
        assert not unknown, f"no parameters of the template: {unknown}"
        self.parameters = {
            name: str(answers[name] if name in answers else rules.get("Default", ""))
            for name, rules in template["Parameters"].items()
        }
        self._known = {**PSEUDO, **self.parameters}
        self._outcomes: dict[str, bool] = {}
        self._functions: dict[str, Callable[[Any], Any]] = {
            "Ref": self._ref,
            "Condition": self.holds,
            "Fn::And": lambda parts: all(map(self.resolve, parts)),
            "Fn::Equals": lambda parts: self.resolve(parts[0]) == self.resolve(parts[1]),
            "Fn::FindInMap": self._find_in_map,
            "Fn::GetAtt": self._get_att,
            "Fn::If": lambda parts: self.resolve(parts[1] if self.holds(parts[0]) else parts[2]),
            "Fn::Join": lambda parts: parts[0].join(self.resolve(parts[1])),
            "Fn::Not": lambda parts: not self.resolve(parts[0]),
            "Fn::Or": lambda parts: any(map(self.resolve, parts)),
            "Fn::Select": lambda parts: self.resolve(parts[1])[int(self.resolve(parts[0]))],
            "Fn::Split": lambda parts: self.resolve(parts[1]).split(parts[0]),
            "Fn::Sub": self._sub,
        }

    @cached_property
    def nested(self) -> dict[str, Stack]:
        given = {
            name: self._template["Resources"][name]["Properties"]["Parameters"] for name in self._template["Nested"]
        }
        return {name: Stack(template, self.resolve(given[name])) for name, template in self._template["Nested"].items()}

    @cached_property
    def resources(self) -> dict[str, dict[str, Any]]:
        """Return every resource that is made, by name; KeyError: one refers to another that is left out."""
        found = {
            name: self.resolve({key: value for key, value in resource.items() if key != "Condition"})
            for name, resource in self._template["Resources"].items()
            if self._exists(name)
        }
        for stack in self.nested.values():
            assert not found.keys() & stack.resources.keys()
            found |= stack.resources
        return found

    def refusals(self) -> list[str]:
        found = []
        for name, rules in self._template["Parameters"].items():
            value = self.parameters[name]
            choices = list(map(str, rules.get("AllowedValues", [value])))
            fits = value in choices and re.fullmatch(rules.get("AllowedPattern", ".*").strip("^$"), value, re.DOTALL)
            if rules["Type"] == "Number" and fits:
                fits = rules.get("MinValue", 0) <= float(value) <= rules.get("MaxValue", float("inf"))
            if not fits:
                found.append(name)
        for rule in self._template.get("Rules", {}).values():
            if self.resolve(rule.get("RuleCondition", True)):
                found += [each["AssertDescription"] for each in rule["Assertions"] if not self.resolve(each["Assert"])]
        return found

    def holds(self, condition: str) -> bool:
        if condition not in self._outcomes:
            self._outcomes[condition] = bool(self.resolve(self._template["Conditions"][condition]))
        return self._outcomes[condition]

    def of_type(self, resource_type: str) -> dict[str, dict[str, Any]]:
        return {
            name: resource["Properties"]
            for name, resource in self.resources.items()
            if resource["Type"] == resource_type
        }

    def statements(self, function: str) -> list[dict[str, Any]]:
        role = self.resources[function]["Properties"]["Role"].strip("<>").removesuffix(".Arn")
        own, shared = (self.resources[role]["Properties"][key] for key in ("Policies", "ManagedPolicyArns"))
        managed = self.of_type("AWS::IAM::ManagedPolicy")
        named = {policy.strip("<>") for policy in shared}
        named |= {name for name, policy in managed.items() if f"<{role}>" in policy.get("Roles", [])}
        policies = [*own, *(managed[name] for name in named)]
        return [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]

    def resolve(self, value: Any) -> Any:
        if isinstance(value, dict):
            if len(value) == 1 and (function := self._functions.get(next(iter(value)))):
                return function(next(iter(value.values())))
            pairs = ((key, self.resolve(inner)) for key, inner in value.items())
            return {key: inner for key, inner in pairs if inner is not _NOTHING}
        if isinstance(value, list):
            return [inner for inner in map(self.resolve, value) if inner is not _NOTHING]
        return value

    def _find_in_map(self, parts: list[Any]) -> Any:
        mapping, first, second = map(self.resolve, parts)
        return self._template["Mappings"][mapping][first][second]

    def _get_att(self, parts: list[Any]) -> Any:
        resource, attribute = self._present(parts[0]), self.resolve(parts[1])
        if resource in self._template["Nested"]:
            nested = self.nested[resource]
            return nested.resolve(nested._template["Outputs"][attribute.removeprefix("Outputs.")]["Value"])
        return f"<{resource}.{attribute}>"

    def _exists(self, resource: str) -> bool:
        condition = self._template["Resources"][resource].get("Condition")
        return condition is None or self.holds(condition)

    def _present(self, resource: str) -> str:
        if not self._exists(resource):
            raise KeyError(resource)
        return resource

    def _ref(self, named: Any) -> Any:
        name = self.resolve(named)
        if name == "AWS::NoValue":
            return _NOTHING
        if name in self._known:
            return self._known[name]
        resource, _, made_by_sam = name.partition(".")
        return f"<{self._present(resource)}.{made_by_sam}>" if made_by_sam else f"<{self._present(resource)}>"

    def _sub(self, argument: str | list[Any]) -> str:
        text, names = argument if isinstance(argument, list) else (argument, {})

        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name in names:
                return str(self.resolve(names[name]))
            resource, dot, attribute = name.partition(".")
            return str(self.resolve({"Fn::GetAtt": [resource, attribute]} if dot else {"Ref": name}))

        return re.sub(r"\$\{([^!}]+)\}", value, str(text))


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
        return _substituted(value["Fn::Sub"], names)
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


def _substituted(argument: Any, names: Mapping[str, str]) -> Any:
    if isinstance(argument, list):
        text, own = argument
        return {"Fn::Sub": [_filled(text, names), expanded(own, names)]}
    filled = _filled(argument, names)
    return filled if names and "${" not in filled else {"Fn::Sub": filled}
