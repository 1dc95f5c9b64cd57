"""
What a deployment changes, from what is there and what is wanted. No input or output.

A deployment may be interrupted anywhere and repeated: what is there already is left alone, and not in the plan.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from shepherd_core.adapters.ssh_keys import public_parameter
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.document import parse
from shepherd_core.settings.keys import path
from shepherd_core.settings.rules import DOCUMENTS

from shepherdctl.deployment.machine_lists import LISTS, credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shepherdctl.deployment.answers import Answers
    from shepherdctl.deployment.template import Package

SETTINGS = "settings.toml"
CODE = "code/"
_UNUSABLE = {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED"}
"""States of a stack that can only be deleted: its creation failed."""
_MACHINES = "machines.json"
_OURS = "BmdbHost"
"""The parameter by which a stack is known as Shepherd's: it has no default."""
_STUCK = "UPDATE_ROLLBACK_FAILED"
HALFWAY = "UPDATE_FAILED"
"""The state of a stack whose last update stopped and was not taken back, so that it is not what its template says."""
_OBJECT = re.compile(rf"{CODE}[0-9a-f]{{64}}\.(?:zip|template)")
_BEGUN = "REVIEW_IN_PROGRESS"
"""The state of a stack of which there is nothing but a change set."""


@dataclass(frozen=True, slots=True)
class FoundBucket:
    """A bucket as it is."""

    versioned: bool
    closed: bool
    """Whether nothing in it can be made public."""


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object of the bucket as it is."""

    etag: str
    content: bytes | None = None
    """None: it is an archive, or too large to be compared."""


@dataclass(frozen=True, slots=True)
class FoundStack:
    """A stack as it is."""

    status: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    template: object = None
    """As it was given to CloudFormation."""
    id: str = ""
    """By which it is found also when it is deleted."""

    @property
    def moves(self) -> bool:
        """Return whether CloudFormation is at work on it."""
        return self.status.endswith("_IN_PROGRESS") and self.status != _BEGUN

    @property
    def is_made(self) -> bool:
        """Return whether there is something that can be updated."""
        return self.status not in {*_UNUSABLE, _BEGUN}

    def require_ours(self, name: str) -> None:
        """
        Check that this is the stack of a deployment, before it is updated or deleted.

        Raises:
            ConfigError: it was made of another template; what is in it is not ours to touch.
        """
        if self.status != _BEGUN and _OURS not in self.parameters:
            fault = f"the stack {name} is not Shepherd's (it has no {_OURS}): name another in deployment.stack"
            raise ConfigError([fault])


@dataclass(frozen=True, slots=True)
class Found:
    """What is there of a deployment."""

    account: str
    bucket: FoundBucket | None = None
    parameters: frozenset[str] = frozenset()
    """Names in SSM below the stack's."""
    objects: Mapping[str, FoundObject] = field(default_factory=dict)
    """Settings, documents and code in the bucket, by key."""
    stack: FoundStack | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What is stored of those that have a source, by name."""


@dataclass(frozen=True, slots=True)
class MakeBucket:
    """Make the bucket."""

    bucket: str
    region: str


@dataclass(frozen=True, slots=True)
class KeepVersions:
    """Have the bucket keep what is overwritten."""

    bucket: str


@dataclass(frozen=True, slots=True)
class CloseBucket:
    """Let nothing in the bucket become public."""

    bucket: str


@dataclass(frozen=True, slots=True)
class StoreSecret:
    """Store a secret in SSM."""

    name: str
    value: str | None = field(repr=False)
    """As its source has it; None: it is asked for."""
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class MakeSshKey:
    """Make the SSH key, or the public half that it lacks."""

    name: str
    exists: bool


@dataclass(frozen=True, slots=True)
class PutObject:
    """Put an object into the bucket."""

    bucket: str
    key: str
    content: bytes
    replaces: FoundObject | None
    why: tuple[str, ...] = ()

    @property
    def is_code(self) -> bool:
        """Return whether it is named after its content, so that it does not matter who puts it."""
        return self.key.startswith(CODE)


@dataclass(frozen=True, slots=True)
class DeleteFailedStack:
    """Delete what is left of a stack whose creation or deletion failed."""

    stack: str
    status: str


@dataclass(frozen=True, slots=True)
class DeployStack:
    """Create or update the stack by a change set."""

    stack: str
    creates: bool
    template: str
    """Its key in the bucket."""
    parameters: Mapping[str, str]
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteCode:
    """Delete code that no version uses any more to which the stack may be rolled back."""

    bucket: str
    keys: tuple[str, ...]


Change: TypeAlias = (
    MakeBucket
    | KeepVersions
    | CloseBucket
    | StoreSecret
    | MakeSshKey
    | PutObject
    | DeleteFailedStack
    | DeployStack
    | DeleteCode
)


def told(change: Change) -> str:
    """Return what *change* does, for people."""
    match change:
        case MakeBucket(bucket, region):
            text = f"create the bucket {bucket} in {region}"
        case KeepVersions(bucket):
            text = f"keep versions of what is in {bucket}"
        case CloseBucket(bucket):
            text = f"block public access to {bucket}"
        case StoreSecret(name, value, replaces):
            how = "as you type it" if value is None else "from its source"
            text = f"{'replace' if replaces else 'store'} the secret {name} in SSM, {how}"
        case MakeSshKey(name, exists):
            text = f"store the {'public half of the SSH key' if exists else 'new SSH key'} {name} in SSM"
        case PutObject(bucket, key, content, replaces, why):
            text = f"{'replace' if replaces else 'upload'} s3://{bucket}/{key} ({len(content)} bytes)"
            text = ": ".join([text, *filter(None, [", ".join(why)])])
        case DeleteFailedStack(stack, status):
            text = f"delete what is left of the stack {stack}: it is {status}, so that it cannot be updated"
        case DeployStack(stack, creates):
            text = f"{'create' if creates else 'update'} the stack {stack}: {', '.join(change.why)}"
        case DeleteCode(bucket, keys):
            text = f"delete {len(keys)} of s3://{bucket}/{CODE}, which neither this version nor the last one uses"
    return text


def plan(
    answers: Answers, found: Found, documents: Mapping[str, bytes], given: Mapping[str, str], package: Package
) -> list[Change]:
    """
    Return the changes that are left to do, in their order.

    *documents* are those that the answers name, and *given* is what the sources of secrets have, by parameter.

    Raises:
        ConfigError: something is named that is nowhere, or the stack is in a state that a person must end.
        ListingInvalid: the list of machines is wrong.
    """
    if found.stack is not None:
        found.stack.require_ours(answers.stack)
    listed = _of_bmcs(answers, documents)
    faults = [*_missing(answers, found), *_stuck(answers, found), *_unreadable(answers, listed)]
    if faults:
        raise ConfigError(faults)
    return [
        *_bucket(answers, found),
        *_objects(answers, found, documents, package),
        *_secrets([*listed, *map(answers.parameter, answers.needed_secrets)], found, given),
        *_ssh_key(answers, found),
        *_stack(answers, found, package),
    ]


def _of_bmcs(answers: Answers, documents: Mapping[str, bytes]) -> list[str]:
    """Return the SSM parameters that the list of machines names."""
    named = answers.provider in LISTS and _MACHINES in documents
    return credentials(answers.provider, documents[_MACHINES]) if named else []


def _unreadable(answers: Answers, listed: list[str]) -> Iterator[str]:
    place = answers.parameter("bmc/")
    for name in listed:
        if not name.startswith(place):
            yield f"{_MACHINES} names {name}: functions may read {place}… and no other"


def _missing(answers: Answers, found: Found) -> Iterator[str]:
    """Yield what the settings name in the bucket, and neither it nor the answers have."""
    for key, name in DOCUMENTS.items():
        table, _, setting = key.rpartition(".")
        source = answers.document.tables.get(table, {}).get(setting)
        here = f"s3://{answers.bucket}/documents/{name}"
        if source == here and name not in answers.documents and f"documents/{name}" not in found.objects:
            yield f"{key} is {here}, which is not there: name its file as deployment.documents.{json.dumps(name)}"


def _stuck(answers: Answers, found: Found) -> Iterator[str]:
    if found.stack is not None and found.stack.status == _STUCK:
        yield (
            f"the stack {answers.stack} is {_STUCK}: run aws cloudformation continue-update-rollback --stack-name "
            f"{answers.stack}, then this again"
        )


def _bucket(answers: Answers, found: Found) -> Iterator[Change]:
    bucket = found.bucket
    if bucket is None:
        yield MakeBucket(answers.bucket, answers.region)
    if bucket is None or not bucket.closed:
        yield CloseBucket(answers.bucket)
    if bucket is None or not bucket.versioned:
        yield KeepVersions(answers.bucket)


def _secrets(names: list[str], found: Found, given: Mapping[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys(names):
        if name not in found.parameters:
            yield StoreSecret(name, given.get(name))
        elif name in given and given[name] != found.secrets[name]:
            yield StoreSecret(name, given[name], replaces=True)


def _ssh_key(answers: Answers, found: Found) -> Iterator[Change]:
    name = answers.parameter("ssh-key")
    if not {name, public_parameter(name)} <= found.parameters:
        yield MakeSshKey(name, name in found.parameters)


def _objects(answers: Answers, found: Found, documents: Mapping[str, bytes], package: Package) -> Iterator[Change]:
    named = {f"documents/{name}": content for name, content in documents.items()}
    for key, content in {**named, SETTINGS: answers.content}.items():
        there = found.objects.get(key)
        if there is None or there.content != content:
            why = _changed_settings(there, answers) if key == SETTINGS else ()
            yield PutObject(answers.bucket, key, content, there, tuple(why))
    for key, content in package.objects.items():
        if key not in found.objects:
            yield PutObject(answers.bucket, key, content, None)


def _changed_settings(before: FoundObject | None, answers: Answers) -> Iterator[str]:
    """Yield the settings that are other than in the document that is there, such as those that somebody set there."""
    try:
        old = {} if before is None or before.content is None else parse(before.content)[0].tables
    except ConfigError:
        return
    new = answers.document.tables
    for table in {**old, **new} if old else ():
        was, wanted = old.get(table, {}), new.get(table, {})
        for name in {**was, **wanted}:
            if was.get(name) != wanted.get(name):
                wanted_first = (repr(each[name]) if name in each else "unset" for each in (wanted, was))
                yield f"{path(table, name)} is {' instead of '.join(wanted_first)}"


def _stack(answers: Answers, found: Found, package: Package) -> Iterator[Change]:
    stack, wanted = found.stack, answers.parameters
    if stack is None or not stack.is_made:
        if stack is not None and stack.status in _UNUSABLE:
            yield DeleteFailedStack(answers.stack, stack.status)
        why = [f"{name}={value}" for name, value in wanted.items() if value]
        yield DeployStack(answers.stack, creates=True, template=package.key, parameters=wanted, why=tuple(why))
        return
    why = [
        f"{name} is {value!r} instead of {before!r}"
        for name, value in wanted.items()
        if (before := stack.parameters.get(name, "")) != value
    ]
    is_other = stack.template != json.loads(package.objects[package.key])
    if is_other:
        why.append("the code or the template is another")
    if stack.status == HALFWAY:
        why.append(f"it is {HALFWAY}: a part of it is still as before")
    if why:
        yield DeployStack(answers.stack, creates=False, template=package.key, parameters=wanted, why=tuple(why))
    used = {*package.objects, *_code_of(stack.template, found)}
    if is_other and (old := [key for key in found.objects if _OBJECT.fullmatch(key) and key not in used]):
        yield DeleteCode(answers.bucket, tuple(old))


def _code_of(template: object, found: Found) -> Iterator[str]:
    """Yield the keys of the code that a template uses, by itself and by its nested ones."""
    for key in _OBJECT.findall(json.dumps(template)):
        yield key
        nested = found.objects.get(key)
        if nested is not None and nested.content is not None:
            yield from _code_of(nested.content.decode(), found)
