"""
The questions of a first deployment: what the command cannot know, each with meaning, default and a check on the spot.

The answers are the text of a settings document. No secret is asked for here.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter, ValidationError
from shepherd_core.adapters import documents
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.settings.base import FILLED_IN
from shepherd_core.settings.keys import bounds
from shepherd_core.settings.providers import BUILT_IN, find, names
from shepherd_core.settings.rules import DOCUMENTS, RULES

from shepherdctl.deployment.answers import model
from shepherdctl.deployment.machine_lists import LISTS
from shepherdctl.descriptions.blank_document import as_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic.fields import FieldInfo
    from shepherd_core.settings.base import ProviderSettings

    from shepherdctl.deployment.template import Parameter

Ask = Callable[[str], str]
"""Shows a text, and returns what the operator types on one line."""
Check = Callable[[str], Any]
"""Returns the value of a reply. Raises ValueError or ShepherdError, which say what is wrong."""

_RDS_HOST = ".rds.amazonaws.com"
_RDS_CAS = "https://truststore.pki.rds.amazonaws.com/global/global-bundle.pem"
_BMDB_CA = "bmdb-ca.pem"
_CONNECT_SECONDS = 3.0
_PORT = 5432


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is asked, and for whom."""

    account: str
    region: str
    folder: Path
    """Of the file with the answers: paths are relative to it."""


def ask(question: Ask, tell: Callable[[str], None], parameters: Mapping[str, Parameter], place: Place) -> str:
    """Return the settings document of a deployment, as the operator answers."""
    fields = model(parameters).model_fields

    def answer(key: str, default: str | None) -> str:
        field = fields[key]
        return str(_until_right(question, tell, key, str(field.description), default, _of_field(field)))

    provider = _until_right(question, tell, "provider", _about_providers(), None, _provider)
    given = {"stack": answer("stack", "shepherd"), "region": place.region}
    given["bucket"] = answer("bucket", f"{given['stack']}-{place.account}-{place.region}".lower())
    given["bmdb_host"] = answer("bmdb_host", None)
    tell(_reached(given["bmdb_host"]))
    for key in ("bmdb_login", "vpc"):
        given[key] = answer(key, str(fields[key].default))
    uploads: dict[str, str] = {}
    ca = _document(question, tell, place, f"CAs of {given['bmdb_host']}: PEM certificates; empty: the system's.", given)
    settings = _of_provider(question, tell, provider, given["bucket"], place, uploads)
    lines = ["version = 1", "", "[deployment]"]
    lines += [f"{key} = {as_toml(value)}" for key, value in given.items() if value != str(fields[key].default)]
    if ca:
        uploads[_BMDB_CA] = ca
    if uploads:
        lines += [
            "",
            "[deployment.documents]",
            *(f"{as_toml(name)} = {as_toml(path)}" for name, path in uploads.items()),
        ]
    if ca:
        lines += ["", "[bmdb]", f"bmdb_ca_source = {as_toml(_uploaded(given['bucket'], _BMDB_CA))}"]
    lines += ["", f"[provider.{provider}]", *(f"{name} = {as_toml(value)}" for name, value in settings.items())]
    return "\n".join([*lines, ""])


def _until_right(
    question: Ask, tell: Callable[[str], None], name: str, about: str, default: str | None, check: Check
) -> Any:
    """Ask until the reply is right; Enter takes the *default*, unless that is None."""
    tell(f"\n{about}")
    shown = "" if default is None else f" [{default}]"
    while True:
        reply = question(f"{name}{shown}: ").strip() or default
        try:
            if reply is None:
                tell("there is no default: type a value")
            else:
                return check(reply)
        except (ShepherdError, ValueError) as error:
            tell(f"{reply!r} {_wrong(error)}" if isinstance(error, ValueError) else str(error))


def _wrong(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
    return str(error)


def _of_field(field: FieldInfo) -> Check:
    """Return the check of a setting; text is turned into what its type wants."""
    metadata: Any = field.metadata
    wanted: Any = Annotated[field.annotation, FILLED_IN, *metadata]
    adapter: TypeAdapter[Any] = TypeAdapter(wanted)
    return adapter.validate_python


def _about_providers() -> str:
    listed = (f"  {name}: {str(find(name).settings.__doc__).splitlines()[0]}" for name in names())
    return "\n".join(["Whose machines these are. docs/providers compares them.", *listed])


def _provider(reply: str) -> str:
    if reply not in names():
        message = f"is not one of {', '.join(BUILT_IN)}"
        raise ValueError(message)
    return reply


def _reached(host: str) -> str:
    """Return whether the database can be reached from here; Lambda may have another way."""
    try:
        with socket.create_connection((host, _PORT), _CONNECT_SECONDS):
            return f"{host} answers on port {_PORT}"
    except OSError as error:
        return f"{host} does not answer here on port {_PORT} ({error}). In a VPC, only the functions need a way to it"


def _document(question: Ask, tell: Callable[[str], None], place: Place, about: str, given: Mapping[str, str]) -> str:
    default = _RDS_CAS if given["bmdb_host"].endswith(_RDS_HOST) else ""

    def readable(source: str) -> str:
        if source:
            _read(source, place)
        return source

    return str(_until_right(question, tell, _BMDB_CA, about, default, readable))


def _read(source: str, place: Place) -> bytes:
    return documents.read(source if ":" in source else str(place.folder / source))


def _uploaded(bucket: str, name: str) -> str:
    return f"s3://{bucket}/documents/{name}"


def _of_provider(
    question: Ask, tell: Callable[[str], None], provider: str, bucket: str, place: Place, uploads: dict[str, str]
) -> dict[str, Any]:
    """Return the settings without which the provider's do not work; files that they name are put into *uploads*."""
    spec, found = find(provider), dict[str, Any]()
    stand_ins: dict[str, Any] = dict.fromkeys(spec.given, "given")
    while missing := _missing(spec.settings, {**found, **stand_ins}):
        for name in missing:
            field = spec.settings.model_fields[name]
            about, document = _meaning(field), DOCUMENTS.get(f"{spec.settings.table}.{name}")
            if document is None:
                found[name] = _until_right(question, tell, name, about, None, _of_field(field))
                continue

            def listed(source: str) -> str:
                LISTS[provider](lambda: b"").parse(_read(source, place))
                return source

            uploads[document] = _until_right(question, tell, document, f"{about} Here: its file.", document, listed)
            found[name] = _uploaded(bucket, document)
    return found


def _missing(settings: type[ProviderSettings], given: Mapping[str, Any]) -> list[str]:
    """Return what else these settings of a provider need: by themselves, or by the rules between them."""
    try:
        settings(**given)
    except ValidationError as error:
        return [str(item["loc"][0]) for item in error.errors() if str(item["loc"][0]) not in given]
    own = f"{settings.table}."
    needed = [
        rule.keys[0].removeprefix(own)
        for rule in RULES
        if all(key.startswith(own) for key in rule.keys)
        and rule.broken(*(given.get(key.removeprefix(own)) for key in rule.keys))
    ]
    return [name for name in needed if name not in given]


def _meaning(field: FieldInfo) -> str:
    found = bounds(field)
    return f"{field.description}{f' Range: {found}.' if found else ''}"
