"""The settings of all functions together: the effective values, where each comes from, and every fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import ValidationError

from shepherd_core.domain.provider import Capability
from shepherd_core.settings import deployment
from shepherd_core.settings.base import PREFIX, Settings
from shepherd_core.settings.check import check
from shepherd_core.settings.deployment import CapacitySettings, DeploymentSettings
from shepherd_core.settings.functions import FUNCTIONS
from shepherd_core.settings.functions.shared import ProviderChoice
from shepherd_core.settings.keys import BMDB, kind
from shepherd_core.settings.providers import PROVIDERS, SPECS
from shepherd_core.settings.rules import can_recover
from shepherd_core.settings.sources import DEFAULT_PREFIX, faults, given, variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.settings.document import Document

GIVEN = {
    *ProviderChoice.model_fields,
    "bmdb_host",
    "agent_source",
    "agent_endpoint",
    "ec2_fleet",
    *(name for spec in SPECS for name in spec.secrets),
}
"""Settings without a default that a deployment gives to the functions that need them, and to no other."""

_NAMED = {"bmdb_password_parameter", "bmdb_roles", "ssh_key_parameter", "installation_public_key_parameter"}
FIXED = {*GIVEN, "bmdb_auth", *_NAMED} - {"agent_endpoint"}
"""Settings that a deployment gives in the environment, so that its document cannot."""

_PROVIDER, _DEPLOYMENT, _RECOVERER = "provider", "deployment", "recoverer"
_STAND_INS: dict[type, Any] = {str: "https://stand-in.invalid", int: 1}


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
    values: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """By function, ``bmdb``, ``provider`` and ``deployment``; those that are missing or faulty are left out."""
    faults: list[str] = field(default_factory=list)


def effective(document: Document | None) -> Effective:
    """
    Return the settings of all functions, from the environment of this process and *document*, and their faults.

    Settings that the deployment gives to single functions may be missing. The settings of a
    provider are checked if it is chosen, or if the document has them.
    """
    provider = _provider(document)
    types: dict[str, type[Settings]] = {**FUNCTIONS, BMDB: CapacitySettings, _DEPLOYMENT: DeploymentSettings}
    if provider is not None:
        types[_PROVIDER] = PROVIDERS[provider]
    values: dict[str, Mapping[str, Value]] = {}
    found: list[str] = []
    for name, settings_type in types.items():
        values[name], wrong = _read(settings_type, document)
        found += [fault for fault in wrong if fault not in found]
    others = () if document is None else set(document.tables) - {PROVIDERS[provider].table if provider else ""}
    for settings_type in PROVIDERS.values():
        if settings_type.table in others:
            found += [fault for fault in _read(settings_type, document, complete=False)[1] if fault not in found]
    return Effective(provider, values, found + check(_for_rules(values, provider)))


def _capabilities(provider: str | None) -> frozenset[Capability]:
    """Return what the provider can do with at least some machines; everything, if it is unknown."""
    return next((spec.always.union(spec.sometimes) for spec in SPECS if spec.name == provider), frozenset(Capability))


def _provider(document: Document | None) -> str | None:
    chosen = {**given(ProviderChoice, document), **variables(PREFIX)}.get(_PROVIDER)
    return chosen if chosen in PROVIDERS else None


def _read(
    settings_type: type[Settings], document: Document | None, *, complete: bool = True
) -> tuple[dict[str, Value], list[str]]:
    """Return the values of one type and its faults. If not *complete*, required values may be missing."""
    from_document = {} if document is None else document.values(settings_type)
    environment, defaults = variables(PREFIX), variables(DEFAULT_PREFIX)
    values = given(settings_type, document)
    fields = settings_type.model_fields
    absent = {
        name
        for name in fields
        if name not in environment
        and name not in values
        and (name in GIVEN or not complete or (document is not None and document.is_faulty(settings_type, name)))
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
    if get_origin(setting.annotation) is Literal:
        return get_args(setting.annotation)[0]
    return _STAND_INS[kind(setting.annotation)]


def _for_rules(values: Mapping[str, Mapping[str, Value]], provider: str | None) -> dict[str, dict[str, Any]]:
    plain: dict[str, dict[str, Any]] = {
        name: {key: value.value for key, value in each.items()} for name, each in values.items()
    }
    own = plain[_DEPLOYMENT]
    if "loop_minutes" in own:
        own["loop_minutes"] = deployment.loop_minutes(own["loop_minutes"])
        for loop, minutes in own["loop_minutes"].items():
            plain[loop]["loop_minutes"] = minutes
    capabilities = _capabilities(provider)
    plain.setdefault(_PROVIDER, {})["capabilities"] = capabilities
    own["agent_api_connections"] = deployment.DeploymentSettings.model_construct(**own).agent_api_connections
    own["enabled"] = set(deployment.LOOPS)
    policy = plain[_RECOVERER].get("remediation_policy")
    if policy is not None and not can_recover(policy, capabilities):
        own["enabled"].remove(_RECOVERER)  # it refuses to work, and a deployment does not schedule it
        plain[_RECOVERER] = {}
    return plain
