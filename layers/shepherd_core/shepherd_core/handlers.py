"""
The composition root: builds the functions from their settings, and runs one invocation.

What is built is kept for the life of the process, so that a warm invocation
starts with an open database connection. What only one function needs is
imported when that one is built.
"""

from __future__ import annotations

import tempfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from shepherd_core import telemetry, wiring
from shepherd_core.bmdb.schema.migrate import require
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import ConfigError, DriftLimitExceeded, EventInvalid, ShepherdError
from shepherd_core.domain.machine import Capability
from shepherd_core.settings import functions
from shepherd_core.telemetry import Metric
from shepherd_core.wiring import CLOCK

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from shepherd_core.agent.endpoint import AgentApi
    from shepherd_core.agent.takeover import AgentBinary
    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.provider import Provider
    from shepherd_core.operator.two_phase import TwoPhase

CLOSING_SECONDS = 2.0
"""Left of an invocation's time for closing the session and writing the metrics."""


class Tick(BaseModel):
    """What a schedule sends; see ``events/``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    loop: str
    scheduled_time: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A loop that is ready to run."""

    provider: str
    run: Callable[[Deadline, str], dict[Metric, float]]
    """Carries out one invocation, by a deadline, on behalf of the one named."""
    plan: Callable[[Deadline], Mapping[str, object]]
    """Returns what an invocation would do as ``plan``, and what else there is to say; changes nothing."""


def invoke(loop: str, event: Mapping[str, object], context: LambdaContext) -> dict[str, object]:
    """
    Run one invocation of *loop* as a Lambda function, and return its counts, or its plan if the event asks for that.

    May run twice and beside itself. An invocation that could not do its work
    raises, so that Lambda counts an error.

    Raises:
        EventInvalid: the event is not for this function.
        ConfigError: the settings are wrong; holds every fault.
        ShepherdError: what went wrong.
    """
    telemetry.bind(request_id=context.aws_request_id, loop=loop)
    try:
        tick = _tick(loop, event)
        seconds = context.get_remaining_time_in_millis() / 1000 - CLOSING_SECONDS
        return run(loop, seconds, context.aws_request_id, dry_run=tick.dry_run)
    except ShepherdError as error:
        telemetry.error("the invocation failed", exc=error)
        raise
    finally:
        telemetry.unbind()


def run(loop: str, seconds: float, runtime_info: str, *, dry_run: bool = False) -> dict[str, object]:
    """Run *loop* once for at most *seconds*, on behalf of *runtime_info*; otherwise as ``invoke``."""
    function = build(loop)
    telemetry.bind(provider=function.provider)
    head: dict[str, object] = {"loop": loop, "provider": function.provider, "dry_run": dry_run}
    deadline = Deadline(CLOCK, seconds)
    if dry_run:
        return {**head, **{name: _plain(part) for name, part in function.plan(deadline).items()}}
    try:
        counts = function.run(deadline, runtime_info)
    except DriftLimitExceeded as error:
        telemetry.emit(
            loop, function.provider, {Metric.DRIFT_LIMIT_EXCEEDED: 1, Metric.DISPUTED: len(error.differences)}
        )
        raise
    telemetry.emit(loop, function.provider, counts)
    return {**head, **{metric.value: count for metric, count in counts.items()}}


def build(loop: str) -> Function:
    """Return *loop* as the environment configures it; the same one every time. Asks nobody anything yet."""
    return _BUILDERS[loop]()


def migrate(event: Mapping[str, object], context: LambdaContext) -> dict[str, object]:
    """
    Bring the BMDB's schema up to date, as ``deployment.handle``, which says what *event* may be.

    Raises:
        ShepherdError: what went wrong.
    """
    from shepherd_core.operator import migrator  # noqa: PLC0415 - see the module's docstring

    telemetry.bind(request_id=context.aws_request_id, loop="migrator")
    try:
        seconds = context.get_remaining_time_in_millis() / 1000
        return migrator.handle(
            event, lambda: wiring.bmdb(functions.load(functions.MigratorSettings)[0]), CLOCK, seconds
        )
    except ShepherdError as error:
        telemetry.error("the invocation failed", exc=error)
        raise
    finally:
        telemetry.unbind()


def agent_api(event: Mapping[str, Any], context: LambdaContext) -> dict[str, object]:
    """
    Answer one request of an agent, as ``AgentApi.handle``; *event* is what an HTTP API makes of it (payload 2.0).

    Raises:
        EventInvalid: the event is no request.
        ConfigError: the settings are wrong.
    """
    from shepherd_core.agent.endpoint import Request  # noqa: PLC0415 - see the module's docstring

    telemetry.bind(request_id=context.aws_request_id, loop="agent_api")
    try:
        try:
            http = event["requestContext"]["http"]
            body = event.get("body") or ""
            request = Request(
                method=http["method"],
                path=event["rawPath"],
                headers=event["headers"],
                body=b64decode(body) if event.get("isBase64Encoded") else body.encode(),
                received_at=event["requestContext"]["timeEpoch"],
            )
        except (KeyError, TypeError, ValueError) as error:
            message = f"the event is not a request of an HTTP API, payload version 2.0: {type(error).__name__} {error}"
            raise EventInvalid(message) from error
        answer = build_agent_api().handle(request)
    except ShepherdError as error:
        telemetry.error("the invocation failed", exc=error)
        raise
    finally:
        telemetry.unbind()
    return {
        "statusCode": answer.status.value,
        "headers": answer.headers,
        "body": b64encode(answer.body).decode(),
        "isBase64Encoded": True,
    }


def bmdb(settings: functions.BmdbSettings | None = None) -> Connection:
    """
    Return a connection to the BMDB that the environment names, or *settings*; connects when it is first used.

    Raises:
        ConfigError: the settings are wrong.
    """
    return wiring.bmdb(settings or functions.load(functions.BmdbSettings)[0])


def resolution(interval_seconds: float) -> TwoPhase:
    """
    Return the way out of a disagreement between provider and BMDB, with the settings of the Provisioner.

    Raises:
        ConfigError: the settings are wrong.
        SchemaMismatch, BmdbError: the BMDB cannot be used.
    """
    from shepherd_core.operator.two_phase import TwoPhase  # noqa: PLC0415 - see the module's docstring

    settings, provider = wiring.load(functions.ProvisionerSettings)
    connection = wiring.bmdb(settings)
    require(connection)  # who only looks opens no session, which would ask for it
    return TwoPhase(provider, connection, CLOCK, settings.max_machines, settings.session_seconds, interval_seconds)


def _tick(loop: str, event: Mapping[str, object]) -> Tick:
    try:
        tick = Tick.model_validate(event)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        message = f"the event is not what a schedule sends: {faults}"
        raise EventInvalid(message) from error
    if tick.loop != loop:
        message = f"the event is for the loop {tick.loop!r}, this is the {loop}"
        raise EventInvalid(message)
    return tick


@cache
def _provisioner() -> Function:
    from shepherd_core.loops.provisioner import Provisioner, RateLimits  # noqa: PLC0415 - see the module's docstring
    from shepherd_core.rules.provisioning import PlanLimits  # noqa: PLC0415

    settings, provider = wiring.load(functions.ProvisionerSettings)
    _require(provider, Capability.CREATE)
    limits = PlanLimits(
        max_machines=settings.max_machines,
        chunk=settings.chunk,
        drift_limit=settings.drift_limit,
        assimilate=settings.assimilate,
        forget_seconds=settings.penalty_seconds,
    )
    pace = RateLimits(
        session_seconds=settings.session_seconds,
        creation_seconds=settings.creation_seconds,
        penalty_seconds=settings.penalty_seconds,
        boot_seconds=settings.boot_seconds,
    )
    connection = wiring.bmdb(settings)

    def provisioner() -> Provisioner:
        return Provisioner(provider, connection, CLOCK, limits, pace)

    def plan(deadline: Deadline) -> dict[str, object]:
        require(connection)  # a plan opens no session, which would ask for it
        return {"plan": provisioner().plan(deadline)}

    return Function(provider.name, lambda deadline, runtime_info: provisioner().run(deadline, runtime_info), plan)


@cache
def _initializer() -> Function:
    from shepherd_core.adapters import documents  # noqa: PLC0415 - see the module's docstring
    from shepherd_core.loops.initializer import Initializer  # noqa: PLC0415

    settings, provider = wiring.load(functions.InitializerSettings)
    agents = documents.AgentCache(Path(tempfile.gettempdir()) / "shepherd-agent")
    dialer = wiring.LazyDialer(settings)

    def fetch() -> tuple[AgentBinary, bytes]:
        dialer.make()  # here, because that the key cannot be had is no machine's fault
        source = settings.agent_ca_source
        return agents.fetch(settings.agent_source), b"" if source is None else wiring.certificate(source)

    loop = Initializer(
        provider,
        dialer,
        fetch,
        path=settings.agent_path,
        endpoint=settings.agent_endpoint,
        answer_seconds=settings.agent_timeout_seconds,
        backoff=settings.backoff,
    )
    return _machine_loop(loop, provider, settings)


@cache
def build_agent_api() -> AgentApi:
    """Return what answers agents, as the environment configures it; the same one every time. Asks nobody yet."""
    from shepherd_core.agent.endpoint import AgentApi  # noqa: PLC0415 - see the module's docstring

    (settings,) = functions.load(functions.AgentApiSettings)
    connection = wiring.bmdb(settings, attempts=2)  # agents try again, and wait longer each time
    return AgentApi(connection, max_body_bytes=settings.max_body_bytes, stale_seconds=settings.stale_seconds)


@cache
def _recoverer() -> Function:
    from shepherd_core.bmdb.work.work import HealthTimeouts  # noqa: PLC0415 - see the module's docstring
    from shepherd_core.loops.recoverer import Recoverer  # noqa: PLC0415
    from shepherd_core.rules.remediation import NEEDS, possible  # noqa: PLC0415

    settings, provider = wiring.load(functions.RecovererSettings)
    if not possible(settings.rungs, provider.capabilities):
        _require(provider, NEEDS[settings.rungs[0].step])
    silence = HealthTimeouts(
        startup_timeout_seconds=settings.startup_timeout_seconds,
        heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds,
    )
    loop = Recoverer(
        provider,
        silence=silence,
        boot_wait_seconds=settings.boot_wait_seconds,
        backoff=settings.backoff,
        budgets=settings.budgets,
        ladder=settings.rungs,
        reset_after_seconds=settings.reset_after_seconds,
    )
    return _machine_loop(loop, provider, settings)


@cache
def _updater() -> Function:
    from shepherd_core.loops.updater import Updater  # noqa: PLC0415 - see the module's docstring

    settings, provider = wiring.load(functions.UpdaterSettings)
    connection = wiring.bmdb(settings)
    updater = Updater(provider, connection, CLOCK, settings.session_seconds, settings.update_seconds)

    def plan(deadline: Deadline) -> dict[str, object]:
        require(connection)  # a plan opens no session, which would ask for it
        return {"plan": updater.plan(deadline)}

    return Function(provider.name, updater.run, plan)


_BUILDERS: dict[str, Callable[[], Function]] = {
    "provisioner": _provisioner,
    "initializer": _initializer,
    "recoverer": _recoverer,
    "updater": _updater,
}

LOOPS = tuple(_BUILDERS)
"""The names of the loops."""


def _require(provider: Provider, capability: Capability) -> None:
    """Refuse a provider that cannot do what a loop is for, before the loop has touched anything."""
    if capability not in provider.capabilities:
        offered = ", ".join(sorted(provider.capabilities))
        fault = (
            f"{functions.PREFIX}PROVIDER is {provider.name!r}, which cannot {capability} machines. It can: {offered}."
        )
        raise ConfigError([fault])


def _machine_loop(loop: Any, provider: Provider, settings: Any) -> Function:
    from shepherd_core.loops import runner  # noqa: PLC0415 - see the module's docstring

    limits = runner.RunLimits(
        settings.concurrency, settings.machine_seconds, settings.session_seconds, settings.history_days
    )
    connection = wiring.bmdb(settings)

    def plan(_: Deadline) -> dict[str, object]:
        rehearsal = runner.dry_run(loop, provider.name, connection, CLOCK, limits)

        def told(works: list[Work]) -> list[dict[str, Any]]:
            decisions = ((work, rehearsal.decisions.get(work)) for work in works)
            return [{**asdict(work), "decision": decision and str(decision)} for work, decision in decisions]

        return {
            "plan": told(rehearsal.work),
            "recovery_suspended": rehearsal.recovery_suspended,
            "plan_without_suspension": told(rehearsal.suspended),
        }

    return Function(
        provider.name,
        lambda deadline, runtime_info: runner.run(
            loop, provider.name, connection, CLOCK, limits, deadline=deadline, runtime_info=runtime_info
        ),
        plan,
    )


def _plain(plan: object) -> object:
    """Return a plan in terms that JSON has."""
    if is_dataclass(plan) and not isinstance(plan, type):
        return _plain(asdict(plan))
    if isinstance(plan, Mapping):
        return {str(key): _plain(value) for key, value in plan.items()}
    if isinstance(plan, list | tuple):
        return [_plain(item) for item in plan]
    return plan if plan is None or isinstance(plan, bool | int | float) else str(plan)
