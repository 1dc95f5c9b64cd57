"""What a person lacks: after a refusal, each right of the kind of person whose command it is gets tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import TypeAlias, TypeVar

from shepherd_core.adapters import aws, locations, ssh_keys
from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.bmdb.wire import server
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import StatementFailed
from shepherd_core.settings import sources
from shepherd_core.settings.base import PREFIX, Settings
from shepherd_core.settings.deployment import OperatorSettings
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.functions.shared import ProviderChoice, SshKeySettings
from shepherd_core.settings.providers import find
from shepherd_core.wiring import adapters
from shepherd_core.wiring.settings import load

from shepherdctl.deployment import function_logs, machine_lists
from shepherdctl.people import Person

S = TypeVar("S", bound=Settings)

_NOT_PERMITTED = {"42501", "28000"}  # a statement; a login, such as one that IAM does not permit

_Right: TypeAlias = tuple[str, Callable[[], object]]
"""Its name, and what fails without it and changes nothing."""


def is_refusal(error: BaseException | None) -> bool:
    """Return whether *error* comes of a right that the caller lacks, in AWS or in the BMDB."""
    while error is not None:
        if isinstance(error, StatementFailed) and error.sqlstate in _NOT_PERMITTED:
            return True
        if type(error).__module__.startswith("botocore.") and aws.classify(error)[0] is aws.AwsFault.DENIED:
            return True
        error = error.__cause__ or error.__context__
    return False


def missing(person: Person) -> list[str]:
    """Return which rights of *person* the caller lacks, of those that can be tried without changing anything."""
    kinds, lacking = list(Person), []
    for part in [part for kind in kinds[: kinds.index(person) + 1] for part in _PARTS[kind]]:
        with suppress(ShepherdError):  # settings that are missing, or in a document that cannot be read
            for name, attempt in part():
                if _is_refused(attempt):
                    lacking.append(name)
    return list(dict.fromkeys(lacking))


def _is_refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - whatever else is wrong with it is no lack of a right
        return is_refusal(error)
    return False


def _load(settings_type: type[S]) -> S:
    """Return settings, those of the environment alone if the document cannot be read."""
    try:
        return load(settings_type)[0]
    except ShepherdError:
        return sources.load(settings_type)[0]


def _login(person: Person) -> Iterator[_Right]:
    settings = _load(BmdbSettings)
    own = settings.of_role(person) if settings.bmdb_roles else settings
    if own.bmdb_auth == "password" and own.bmdb_password_parameter:
        yield _parameter(own.bmdb_password_parameter)
        return

    def log_in() -> None:
        with closing(adapters.bmdb(settings, attempts=1, role=person)) as connection:
            server.now(connection)

    yield f"rds-db:connect as {own.bmdb_user}", log_in


def _documents() -> Iterator[_Right]:
    if settings := sources.variables(PREFIX).get("settings"):
        yield _document(settings)
    if authorities := _load(BmdbSettings).bmdb_ca_source:
        yield _document(authorities)


def _public_key() -> Iterator[_Right]:
    yield _parameter(ssh_keys.public_parameter(_load(SshKeySettings).ssh_key_parameter))


def _logs() -> Iterator[_Right]:
    if "/" not in (stack := _load(OperatorSettings).logs):
        for function in function_logs.FUNCTIONS:
            yield _asked(
                "logs:FilterLogEvents", "filter_log_events", logGroupName=f"/aws/lambda/{stack}-{function}", limit=1
            )


def _installation_key() -> Iterator[_Right]:
    yield _document(_load(OperatorSettings).installation_key_source)


def _provider() -> Iterator[_Right]:
    provider = _load(ProviderChoice).provider
    if provider == "ec2":
        yield _asked("ec2:DescribeInstances", "describe_instances", DryRun=True)
        return
    own = _load(find(provider).settings).model_dump()
    if "credential_parameter" in own:
        yield _parameter(own["credential_parameter"])
    for source in filter(None, (own.get("machines"), own.get("ca_source"))):
        yield _document(source)
    if provider in machine_lists.LISTS:  # the first BMC's: the others' are beside it
        yield from map(_parameter, machine_lists.credentials(provider, adapters.read(own["machines"]))[:1])


def _owner() -> Iterator[_Right]:
    if name := _load(BmdbSettings).bmdb_password_parameter:
        yield _parameter(name)


def _deployment() -> Iterator[_Right]:
    yield _parameter(_load(SshKeySettings).ssh_key_parameter)
    yield _asked("ssm:DescribeParameters", "describe_parameters", MaxResults=1)
    yield _asked("cloudformation:DescribeStacks", "describe_stacks", StackName=_load(OperatorSettings).logs)


_PARTS: dict[Person, tuple[Callable[[], Iterator[_Right]], ...]] = {
    Person.ANYBODY: (),
    Person.READER: (_documents, partial(_login, Person.READER), _public_key, _logs),
    Person.OPERATOR: (partial(_login, Person.OPERATOR), _installation_key, _provider),
    Person.ADMINISTRATOR: (_owner, _deployment),
}
"""By the lowest kind of person that needs them."""


def _asked(action: str, method: str, **arguments: object) -> _Right:
    def ask() -> None:
        getattr(aws.client(action.partition(":")[0]), method)(**arguments)

    where = [str(value) for name, value in arguments.items() if name.endswith("Name")]
    return " on ".join((action, *where)), ask


def _parameter(name: str) -> _Right:
    return f"ssm:GetParameter on {name}", partial(SsmSecretStore().find, name)


def _document(source: str) -> _Right:
    if locations.scheme(source) == "ssm":
        return _parameter(source.removeprefix("ssm:"))
    return f"s3:GetObject on {source}", partial(adapters.read, source)
