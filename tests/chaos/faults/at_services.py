"""Faults of the services that the functions use: SSM, S3, the database, and their clock."""

import json
import os
import time
from collections.abc import Callable

from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.settings.functions.specs import LOOPS

from tests.chaos.faults.fault import Stage, rows
from tests.support.bmdb.fleet import _TABLES, HOUR
from tests.support.providers.scripted_http import Answer, scripted_server


def _aws(service: str, answer: Answer) -> Callable[[Stage], None]:
    def begin(stage: Stage) -> None:
        server = stage.undo.enter_context(scripted_server(lambda _: answer))
        name = f"AWS_ENDPOINT_URL_{service}"
        os.environ[name] = server.url
        stage.undo.callback(os.environ.pop, name)

    return begin


def _ssm(code: str, use: Callable[[Stage], object]) -> Callable[[Stage], None]:
    def begin(stage: Stage) -> None:
        _aws("SSM", Answer(400, json.dumps({"__type": code}).encode()))(stage)
        use(stage)

    return begin


def _secret() -> str:
    return SsmSecretStore().get("/a/secret")


def _api_key(stage: Stage) -> None:
    stage.scenario.access.api_key = _secret


def _password(stage: Stage) -> None:
    stage.scenario.access.password = _secret


def _ssh_key(stage: Stage) -> None:
    stage.scenario.access.prepare = _secret


def _agent_in_s3(stage: Stage) -> None:
    refusal = b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>"
    _aws("S3", Answer(404, refusal, {"Content-Type": "application/xml"}))(stage)
    stage.scenario.access.agent_source = "s3://bucket/agent"


AWS = (
    *rows("provisioner", ("SSM throttled", _ssm("ThrottlingException", _api_key), "fails provider-unavailable")),
    *rows("provisioner", ("parameter missing", _ssm("ParameterNotFound", _api_key), "fails provider-unusable")),
    *rows("recoverer", ("parameter missing", _ssm("ParameterNotFound", _api_key), "cause provider-unusable")),
    *rows("updater", ("parameter missing", _ssm("ParameterNotFound", _password), "fails secret-missing")),
    *rows(
        "initializer",
        ("SSM throttled", _ssm("ThrottlingException", _ssh_key), "fails secret-unavailable"),
        ("parameter missing", _ssm("ParameterNotFound", _ssh_key), "fails secret-missing"),
        ("agent object missing", _agent_in_s3, "fails source-missing"),
    ),
)


def _full(stage: Stage) -> None:
    """Answer every write with the error of a full disk."""
    stage.sql(
        "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
        "RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END$$",
        undo="DROP FUNCTION no_room CASCADE",
    )
    for (table,) in stage.environment.fleet.sql(_TABLES):
        stage.environment.fleet.sql(
            f"CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON {table} EXECUTE FUNCTION no_room()"
        )


def _read_only(stage: Stage) -> None:
    database = stage.environment.fleet.settings.bmdb_name
    stage.sql(
        f"ALTER DATABASE {database} SET default_transaction_read_only = on",
        undo=f"ALTER DATABASE {database} RESET default_transaction_read_only",
    )


def _out_of_connections(stage: Stage) -> None:
    stage.sql("CREATE ROLE crowded LOGIN CONNECTION LIMIT 0", undo="DROP ROLE crowded")
    stage.scenario.access.bmdb = stage.environment.fleet.settings.model_copy(update={"bmdb_user": "crowded"})


def _older(stage: Stage) -> None:
    stage.sql(
        "UPDATE schema_migrations SET version = -version WHERE version = (SELECT max(version) FROM schema_migrations)",
        undo="UPDATE schema_migrations SET version = -version WHERE version < 0",
    )


def _newer(stage: Stage) -> None:
    stage.sql(
        "UPDATE schema_migrations SET version = version + 9000, oldest_code = oldest_code + 9000 "
        "WHERE version = (SELECT max(version) FROM schema_migrations)",
        undo="UPDATE schema_migrations SET version = version - 9000, oldest_code = oldest_code - 9000 "
        "WHERE version > 9000",
    )


def _clock(seconds: float) -> Callable[[Stage], None]:
    def begin(stage: Stage) -> None:
        right = time.time
        time.time = lambda: right() + seconds
        stage.undo.callback(setattr, time, "time", right)

    return begin


DATABASE = tuple(
    fault
    for loop in LOOPS
    for fault in rows(
        loop,
        ("database full", _full, "fails statement-failed"),
        ("database read-only", _read_only, "fails bmdb-unavailable"),
        ("database out of connections", _out_of_connections, "fails bmdb-unavailable"),
        ("schema older", _older, "fails schema-mismatch"),
        ("schema newer", _newer, "fails schema-mismatch"),
        ("clock of the function wrong by an hour", _clock(HOUR), ""),
        ("clock of the function wrong by an hour", _clock(-HOUR), ""),
    )
)
