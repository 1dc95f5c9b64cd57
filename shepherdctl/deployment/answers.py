"""
The answers of a deployment: the table ``deployment`` of its settings document. No input or output.

Its keys are the parameters of ``template.yaml``, which says what each may be, and those of ``_OwnAnswers``. Provider
and settings stand in the rest of the document, so that one file has all that a deployment is told, and no secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.events import shown
from shepherd_core.settings.base import FILLED_IN
from shepherd_core.settings.document import DEPLOYMENT, bounded, parse
from shepherd_core.settings.effective import effective
from shepherd_core.settings.providers import find
from shepherd_core.settings.rules import DOCUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shepherd_core.settings.document import Document

    from shepherdctl.deployment.template import Parameter

LONGEST_STACK = 50
"""Letters. The Provisioner's database user, which has 63 at most, begins with the name."""
WITHOUT_FUNCTION_URL = frozenset(
    {
        "ap-east-2", "ap-south-2", "ap-southeast-4", "ap-southeast-5", "ap-southeast-6", "ap-southeast-7",
        "ca-west-1", "eu-central-2", "eu-south-2", "il-central-1", "me-central-1", "mx-central-1", "us-gov-west-1",
    }
)  # fmt: skip
"""Regions without function URLs: as the guide of Lambda and the schemas of cfn-lint 1.x have it."""
_ENDPOINTS, _HTTP_API = "AgentEndpoints", "http-api"
_PROVIDER = "Provider"
"""The parameter that the rest of the document says."""
_RESOURCES = "Ec2Resources"


def _matching(pattern: str, wanted: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(wanted)
        return value

    return AfterValidator(check)


class _OwnAnswers(BaseModel):
    """The answers that are no parameters."""

    model_config = ConfigDict(extra="forbid", strict=True)

    stack: Annotated[
        str,
        FILLED_IN,
        _matching(
            rf"[a-zA-Z][a-zA-Z0-9-]{{0,{LONGEST_STACK - 1}}}",
            f"must begin with a letter, and have at most {LONGEST_STACK} letters, digits and hyphens: functions and "
            "database users are named after it",
        ),
    ] = Field("shepherd", description="Name of the stack, after which everything is named that belongs to it.")
    region: Annotated[
        str, FILLED_IN, _matching(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}", "must be the name of a region, such as eu-central-1")
    ] = Field(description="AWS region.")
    secrets: dict[str, Annotated[str, FILLED_IN]] = Field(
        {},
        description="Where secrets come from that are not in SSM yet, by name: a path, https://…, s3://BUCKET/KEY or "
        "ssm:NAME. Those that have no source are asked for.",
    )
    documents: dict[str, Annotated[str, FILLED_IN]] = Field(
        {},
        description="Where the documents come from that the settings name in the bucket, by name: a path, https://… or "
        "s3://BUCKET/KEY.",
    )


@dataclass(frozen=True, slots=True)
class Answers:
    """What a deployment is told."""

    content: bytes
    """The settings document, with the answers in it."""
    document: Document
    stack: str
    region: str
    provider: str
    parameters: Mapping[str, str]
    """All parameters of the template, as CloudFormation gets them."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What was decided for the operator."""

    @property
    def bucket(self) -> str:
        """Return the bucket of settings, documents and code."""
        return self.parameters["Bucket"]

    @property
    def settings(self) -> str:
        """Return where the functions read the settings document."""
        return f"s3://{self.bucket}/settings.toml"

    def parameter(self, name: str) -> str:
        """Return the name of a parameter of SSM."""
        return f"/{self.stack}/{name}"

    @property
    def needed_secrets(self) -> tuple[str, ...]:
        """Return the secrets without which nothing works: those that the functions read for certain, and the named."""
        login = self.parameters["BmdbLogin"]
        password = ["bmdb-password"] if login in {"passwords", "one-password"} else []
        credential = [f"{self.provider}-credential"] if "credential_parameter" in find(self.provider).given else []
        return tuple(dict.fromkeys([*password, *credential, *self.secrets]))


def model(parameters: Mapping[str, Parameter]) -> type[BaseModel]:
    """Return the type of the table: each of *parameters* but the provider, by its key, and our own answers."""
    fields: dict[str, Any] = {
        each.key: (
            Annotated[str, FILLED_IN, _matching(each.pattern, each.wanted)],
            Field(... if each.default is None else each.default, description=each.about),
        )
        for each in parameters.values()
        if each.name != _PROVIDER
    }
    return create_model("Answers", __base__=_OwnAnswers, **fields)


def read(content: bytes, parameters: Mapping[str, Parameter]) -> Answers:
    """
    Return the answers in a document, whose settings are checked, too.

    Raises:
        ConfigError: something is wrong; lists every fault.
    """
    document, faults = parse(content)
    given, wrong = check(document, parameters)
    faults += wrong
    provider = document.provider
    if provider is None:
        faults.append("the provider is not named: write the table of one, such as [provider.static]")
    faults += effective(document, told_to_functions(given)).faults
    values = {each.name: given.pop(each.key) for each in parameters.values() if each.key in given}
    if faults or provider is None:
        raise ConfigError(bounded(faults))
    values[_PROVIDER] = provider
    notes = []
    asked = document.deployment if isinstance(document.deployment, dict) else {}
    if parameters[_ENDPOINTS].key not in asked and given["region"] in WITHOUT_FUNCTION_URL:
        values[_ENDPOINTS] = _HTTP_API
        notes.append(f"{given['region']} has no function URLs: agents report to an HTTP API")
    if provider == "ec2" and not values[_RESOURCES]:
        values[_RESOURCES] = ",".join(dict.fromkeys(_launched_with(document)))
        notes.append(f"instances may be launched with what the settings name: {values[_RESOURCES]}")
    return Answers(content, document, provider=provider, parameters=values, notes=tuple(notes), **given)


def check(document: Document, parameters: Mapping[str, Parameter]) -> tuple[dict[str, Any], list[str]]:
    """Return the answers in *document*, without what is wrong, and every fault: also of the rest, if it contradicts."""
    table = model(parameters)
    asked = {} if document.deployment is None else document.deployment
    try:
        given = table.model_validate(asked).model_dump()
    except ValidationError as error:
        faults = [_fault(table, item) for item in error.errors(include_url=False)]
        right = asked if isinstance(asked, dict) else {}
        wrong = {str(item["loc"][0]) for item in error.errors() if item["loc"]}
        return {name: value for name, value in right.items() if name not in wrong}, faults
    return given, [*_elsewhere(document, given["bucket"]), *_unreadable(given["documents"])]


def told_to_functions(given: Mapping[str, str]) -> dict[str, str]:
    """Return what the deployment tells its functions of these answers, and cross-setting rules read."""
    told = {"loop_minutes": given.get("loop_minutes", "")}
    loops, _, agent_api = given.get("reserved_concurrency", "").partition(",")
    told |= {"loop_concurrency": loops, "agent_api_concurrency": agent_api}
    return {name: value for name, value in told.items() if value}


def _elsewhere(document: Document, bucket: str) -> Iterator[str]:
    for table, values in document.tables.items():
        for name, value in values.items():
            if isinstance(value, str) and value.startswith("s3://") and value.split("/")[2] != bucket:
                yield f"{table}.{name} is {shown(value)}: functions may read s3://{bucket} and no other bucket"


def _unreadable(documents: Mapping[str, str]) -> Iterator[str]:
    names = {*DOCUMENTS.values()}
    for name in documents.keys() - names:
        yield f"{DEPLOYMENT}.documents has {shown(name)}: functions read {', '.join(sorted(names))} and no other"


def _launched_with(document: Document) -> Iterator[str]:
    values = document.tables.get("provider.ec2", {})
    for name in ("machine_type", "subnets", "security_groups", "image", "launch_template"):
        yield from str(values[name]).split(",") if name in values else ()


def _fault(table: type[BaseModel], item: Any) -> str:
    where = [DEPLOYMENT, *map(str, item["loc"])]
    key, name = ".".join(where), str(item["loc"][0]) if item["loc"] else ""
    if item["type"] == "extra_forbidden":
        similar = get_close_matches(name[:60], table.model_fields)
        hint = (
            f"did you mean {DEPLOYMENT}.{similar[0]}?" if similar else f"its keys are {', '.join(table.model_fields)}"
        )
        return f"{DEPLOYMENT}.{shown(name)[1:-1]} is unknown: {hint}"
    about = table.model_fields[name].description if name in table.model_fields else ""
    if item["type"] == "missing":
        return f"{key} is missing. {about}"
    wrong = item["msg"].removeprefix("Value error, ")
    return f"{key} is {shown(item['input'])}: {wrong}. {about}".rstrip()
