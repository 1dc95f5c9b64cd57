"""
Print template.yaml as CloudFormation gets to see it: with loops written out, and with what SAM makes of it.

    .venv-sam/bin/python .ci/transform.py [--expand FILE | --stacks]

With --expand, print FILE with its loops written out, and nothing else done to it. Linting the output finds what
linting the source does not: wrong references and figures in what is repeated, in functions and in schedules.

With --stacks, read lines such as ``{"template": "template.yaml", "parameters": {"Bucket": "bucket"}}``, and answer each
with what CloudFormation makes of the template, its nested stacks included. The tests look at that. A reference to a
resource becomes ``<Name>`` or ``<Name.Attribute>``; one to a resource that its condition leaves out is an error.

Asks no AWS account. Runs in .venv-sam, whose `sam` evaluates the functions of CloudFormation.
"""

import copy
import json
import sys
from functools import cache
from pathlib import Path

from samcli.lib.cfn_language_extensions import (
    IntrinsicFunctionResolver,
    InvalidTemplateException,
    ProcessingPipeline,
    ResolutionMode,
    TemplateParsingProcessor,
    TemplateProcessingContext,
    UnresolvableReferenceError,
    create_default_intrinsic_resolver,
)
from samcli.lib.cfn_language_extensions.api import IntrinsicResolverProcessor
from samcli.lib.cfn_language_extensions.processors import ForEachProcessor
from samcli.lib.cfn_language_extensions.resolvers import FnRefResolver, FnSubResolver
from samcli.lib.translate.sam_template_validator import SamTemplateValidator
from samcli.yamlhelper import yaml_dump, yaml_parse

ROOT = Path(__file__).parents[1]


class NoManagedPolicies:
    """The template names no managed policy of AWS's, so nobody needs to be asked for one."""

    def load(self) -> dict[str, str]:
        """Return the policies by name."""
        return {}


@cache
def expanded(file: str) -> dict:
    """Return the template in a file with its loops written out."""
    context = TemplateProcessingContext(yaml_parse((ROOT / file).read_text(encoding="utf-8")))
    loops = ForEachProcessor(create_default_intrinsic_resolver(context))
    return ProcessingPipeline([TemplateParsingProcessor(), loops]).process_template(context)


def transformed() -> str:
    """Return template.yaml with its loops written out, and with SAM's resources in place of its own."""
    template = copy.deepcopy(expanded("template.yaml"))
    for resource in template["Resources"].values():
        for key in ("CodeUri", "Location"):  # which `sam build` and `sam deploy` replace
            if key in resource["Properties"]:
                resource["Properties"][key] = f"https://s3.amazonaws.com/bucket/{key}"
    validator = SamTemplateValidator(template, NoManagedPolicies(), region="us-east-1")
    # SAM drops this transform, which has yet to look up what the expanded template finds in mappings.
    return "Transform: AWS::LanguageExtensions\n" + validator.get_translated_template_if_valid()


@cache
def deployed(file: str) -> dict:
    """Return a template as CloudFormation gets it."""
    return yaml_parse(transformed()) if file == "template.yaml" else expanded(file)


class Stack(TemplateProcessingContext):
    """A template with values for its parameters; after ``process``, *fragment* has what is made of it."""

    def __init__(self, file: str, given: dict[str, str]) -> None:
        """Take the defaults of parameters that are not *given*. AWS's own are given, too."""
        super().__init__(copy.deepcopy(deployed(file)), resolution_mode=ResolutionMode.FULL)
        defaults = {name: str(of.get("Default", "")) for name, of in self.fragment.get("Parameters", {}).items()}
        self.pseudo = {name: value for name, value in given.items() if "::" in name}
        self.parameter_values = {**defaults, **given}
        if unknown := self.parameter_values.keys() - defaults.keys() - self.pseudo.keys():
            raise InvalidTemplateException(f"{file} has no parameters {unknown}")
        nested = {name for name, of in self.fragment["Resources"].items() if of["Type"] == "AWS::CloudFormation::Stack"}
        self.files = {name: expanded(file)["Resources"][name]["Properties"]["Location"] for name in nested}
        self.nested: dict[str, Stack] = {}
        self.resolver = create_default_intrinsic_resolver(self)
        self.resolver._resolvers[:0] = (kind(self, self.resolver) for kind in (Reference, Attribute, Substitution))  # noqa: SLF001

    def process(self) -> "Stack":
        """Resolve all functions."""
        steps = [TemplateParsingProcessor(), IntrinsicResolverProcessor(self.resolver)]
        ProcessingPipeline(steps).process_template(self)
        return self

    def made(self, name: str) -> bool:
        """Return whether a resource is not left out by its condition."""
        return self.resolved_conditions.get(self.fragment["Resources"][name].get("Condition"), True)

    def stack(self, name: str) -> "Stack":
        """Return a nested stack."""
        if name not in self.nested:
            given = self.resolver.resolve_value(self.fragment["Resources"][name]["Properties"]["Parameters"])
            self.nested[name] = Stack(self.files[name], {**self.pseudo, **given}).process()
        return self.nested[name]

    def answer(self) -> dict:
        """Return what the tests look at."""
        stacks = [self, *map(self.stack, sorted(self.files))]
        rules = self.fragment.get("Rules", {}).values()
        holds = self.resolver.resolve_value
        return {
            "parameters": self.parameter_values,
            "refusals": [
                each["AssertDescription"]
                for rule in rules
                for each in rule["Assertions"]
                if holds(rule["RuleCondition"]) and not holds(each["Assert"])
            ],
            "conditions": [stack.resolved_conditions for stack in stacks],
            "resources": {
                name: {key: value for key, value in resource.items() if key != "Condition"}
                for stack in stacks
                for name, resource in stack.fragment["Resources"].items()
                if stack.made(name)
            },
            "outputs": {
                name: output["Value"]
                for name, output in self.fragment.get("Outputs", {}).items()
                if self.resolved_conditions.get(output.get("Condition"), True)
            },
        }


class Reference(FnRefResolver):
    """Names the resource that something refers to."""

    def resolve(self, value: dict) -> object:
        """Return the value of a parameter, or the name of a resource."""
        try:
            return super().resolve(value)
        except UnresolvableReferenceError:
            name = self.parent.resolve_value(value["Ref"])
            if not self.context.made(name):
                raise InvalidTemplateException(f"something refers to {name}, which is not made") from None
            return f"<{name}>"


class Attribute(IntrinsicFunctionResolver):
    """Names the attribute of a resource, or finds the output of a nested stack."""

    FUNCTION_NAMES = ("Fn::GetAtt",)

    def resolve(self, value: dict) -> object:
        """Return the name of an attribute, or the value of an output."""
        name, attribute = self.parent.resolve_value(value["Fn::GetAtt"])
        if name in self.context.files:
            return self.context.stack(name).fragment["Outputs"][attribute.removeprefix("Outputs.")]["Value"]
        return f"{self.parent.resolve_value({'Ref': name})[:-1]}.{attribute}>"


class Substitution(FnSubResolver):
    """Substitutes resources, too."""

    def _resolve_variable(self, var_name: str, variable_map: dict) -> object:
        found = super()._resolve_variable(var_name, variable_map)
        if found is not None:
            return found
        name, dot, attribute = var_name.partition(".")
        return self.parent.resolve_value({"Fn::GetAtt": [name, attribute]} if dot else {"Ref": name})


if sys.argv[1:2] == ["--expand"]:
    sys.stdout.write(yaml_dump(expanded(sys.argv[2])))
elif sys.argv[1:] == ["--stacks"]:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = Stack(request["template"], request["parameters"]).process().answer()
        except InvalidTemplateException as error:
            answer = {"error": str(error)}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
else:
    sys.stdout.write(transformed())
