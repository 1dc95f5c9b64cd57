"""The settings of all functions together: the effective values, where each comes from, and every fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import ValidationError

from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.provider import Capability
from shepherd_core.settings.base import PREFIX, Settings, variable
from shepherd_core.settings.deployment import CapacitySettings, DeploymentSettings
from shepherd_core.settings.functions.shared import ProviderChoice
from shepherd_core.settings.functions.specs import FUNCTIONS
from shepherd_core.settings.keys import kind, place
from shepherd_core.settings.providers import BUILT_IN, find
from shepherd_core.settings.rules import check
from shepherd_core.settings.sources import DEFAULT_PREFIX, faults, given, named

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shepherd_core.settings.document import Document
    from shepherd_core.settings.providers.spec import ProviderSpec

GIVEN = {*ProviderChoice.model_fields, "bmdb_host", "agent_endpoint"}
"""
Settings without a default that a deployment gives to the functions that need them, and to no other; those of a provider
are in its ``SPEC``.
"""
FIXED = {
    *GIVEN, "bmdb_auth", "bmdb_password_parameter", "bmdb_roles", "ssh_key_parameter",
    "installation_public_key_parameter",
} - {"agent_endpoint"}  # fmt: skip
"""Settings that a deployment gives in the environment, so that its document cannot."""

_PROVIDER = "provider"
_STAND_INS: dict[type, Any] = {str: "https://stand-in.invalid", int: 1, float: 1.0, bool: False}


class ValueSource(StrEnum):
    """The source of a value."""

    DEFAULT = "default"
    DEPLOYMENT = "deployment"
    """The deployment's own default."""
    DOCUMENT = "document"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Value:
    """An effective value."""

    value: Any
    source: ValueSource


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings of all functions."""

    provider: str | None
    """None: it is not known."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """By key or, without one, by variable; those that are missing or faulty are left out."""
    faults: list[str] = field(default_factory=list)


def effective(document: Document | None, deployment: Mapping[str, str] | None = None) -> Effective:
    """
    Return the settings of all functions, from the environment of this process and *document*, and their faults.

    Settings that the deployment gives to single functions may be missing. The settings of a
    provider are checked if it is chosen, or if the document has them. *deployment* has values of
    ``DeploymentSettings`` that the environment does not have yet.
    """
    spec = _provider(document)
    types: dict[type[Settings], Collection[str]] = dict.fromkeys(
        (CapacitySettings, *FUNCTIONS.values(), DeploymentSettings), GIVEN
    )
    if spec is not None:
        types[spec.settings] = spec.given
    values: dict[str, Value] = {}
    found: list[str] = []
    for settings_type, optional in types.items():
        told = deployment if deployment and settings_type is DeploymentSettings else {}
        right, wrong = _read(settings_type, document, optional, told)
        values |= {place(settings_type, name) or variable(settings_type, name): each for name, each in right.items()}
        found += [fault for fault in wrong if fault not in found]
    for other in (find(name).settings for name in (document.providers if document else ())):
        if other not in types:
            found += [fault for fault in _read(other, document, other.model_fields, {})[1] if fault not in found]
    plain = {key: each.value for key, each in values.items()}
    # The capabilities of the provider for at least some machines; all, if it is unknown.
    capabilities = spec.always.union(spec.sometimes) if spec else frozenset(Capability)
    return Effective(spec.name if spec else None, values, found + check(plain, capabilities))


def _provider(document: Document | None) -> ProviderSpec | None:
    """Return the provider that is chosen; None: there is none, which is a fault of the loops' settings."""
    try:
        return find(str(given(ProviderChoice, document).get(_PROVIDER)))
    except ConfigError:
        return None


def _read(
    settings_type: type[Settings],
    document: Document | None,
    optional: Collection[str],
    deployment: Mapping[str, str],
) -> tuple[dict[str, Value], list[str]]:
    """Return the values of one type and its faults. Those in *optional* may be missing."""
    from_document = {} if document is None else document.values(settings_type)
    environment = named(settings_type, PREFIX)
    defaults = {**named(settings_type, DEFAULT_PREFIX), **deployment}
    values = {**deployment, **given(settings_type, document)}
    fields = settings_type.model_fields
    absent = {
        name
        for name in fields
        if name not in values
        and (name in optional or (document is not None and place(settings_type, name) in document.faulty))
    }
    stand_ins: dict[str, Any] = {name: _stand_in(settings_type, name) for name in absent}
    wrong: list[tuple[str, str]] = []
    try:
        settings = settings_type(**{**values, **stand_ins})
    except ValidationError as error:
        wrong = [(name, fault) for name, fault in faults(settings_type, error, document) if name not in absent]
        absent |= {name for name, _ in wrong}
        try:
            stand_ins |= {name: _stand_in(settings_type, name) for name in absent}
            settings = settings_type(**{**values, **stand_ins})
        except ValidationError:
            return {}, [fault for _, fault in wrong]
    return {
        name: Value(
            getattr(settings, name),
            ValueSource.ENVIRONMENT
            if name in environment
            else ValueSource.DOCUMENT
            if name in from_document
            else ValueSource.DEPLOYMENT
            if name in defaults
            else ValueSource.DEFAULT,
        )
        for name in fields
        if name not in absent
    }, [fault for _, fault in wrong]


def _stand_in(settings_type: type[Settings], name: str) -> Any:
    """Return a value that the setting accepts."""
    setting = settings_type.model_fields[name]
    if not setting.is_required():
        return setting.default
    if name == _PROVIDER:
        return BUILT_IN[0]
    if get_origin(setting.annotation) is Literal:
        return get_args(setting.annotation)[0]
    return _STAND_INS[kind(setting.annotation)]
