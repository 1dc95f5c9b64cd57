"""
The loops, built from the settings.

A loop is built once for each settings document, so that a warm invocation starts
with an open database connection. Modules that only one loop needs are imported when
that loop is built.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shepherd_core import telemetry
from shepherd_core.bmdb.schema.migrate import require
from shepherd_core.domain.errors import ConfigError
from shepherd_core.domain.provider import Capability
from shepherd_core.settings.functions.loops import (
    InitializerSettings,
    ProvisionerSettings,
    RecovererSettings,
    UpdaterSettings,
)
from shepherd_core.wiring import adapters, pace, providers
from shepherd_core.wiring.adapters import CLOCK
from shepherd_core.wiring.settings import bucket_owner, per_document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shepherd_core.agent.takeover import AgentBinary
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.provider import Provider
    from shepherd_core.loops.provisioner import RateLimits
    from shepherd_core.loops.recoverer import RecoveryRules
    from shepherd_core.rules.provisioning import PlanLimits
    from shepherd_core.telemetry import Metric

    _Run = Callable[[Deadline, str], dict[Metric, float]]
    _Plan = Callable[[Deadline], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Function:
    """A loop that is ready to run."""

    provider: str
    run: _Run
    """Runs one invocation until the deadline; the text, which says who runs it, is stored with its session."""
    plan: _Plan
    """Returns the actions of an invocation under ``plan``, and what explains them beside it; changes nothing."""
    close: Callable[[], None]
    """Closes its connection to the BMDB."""


def build(loop: str) -> Function:
    """
    Return *loop* as the settings configure it; the same object as long as they do. Connects to nothing yet.

    Raises:
        ConfigError: the settings are wrong; lists every fault.
        SourceError: the settings document cannot be read.
    """
    builder: Callable[[], Function] = globals()[f"_{loop}"]
    return builder()


@per_document
def _provisioner() -> Function:
    from shepherd_core.loops.provisioner import Provisioner  # noqa: PLC0415 - see the module's docstring

    settings, provider = providers.load(ProvisionerSettings)
    _require(provider, Capability.CREATE)
    limits, rates = creation_limits(settings)
    connection = adapters.bmdb(settings)

    def provisioner() -> Provisioner:
        return Provisioner(provider, connection, CLOCK, limits, rates)

    def plan(deadline: Deadline) -> dict[str, object]:
        require(connection)  # a plan opens no session, which would check the schema
        return {"plan": provisioner().plan(deadline)}

    return Function(
        provider.name, lambda deadline, runtime_info: provisioner().run(deadline, runtime_info), plan, connection.close
    )


def creation_limits(settings: ProvisionerSettings) -> tuple[PlanLimits, RateLimits]:
    """Return how much the Provisioner does, and how fast."""
    from shepherd_core.loops.provisioner import RateLimits  # noqa: PLC0415 - see the module's docstring
    from shepherd_core.rules.provisioning import PlanLimits  # noqa: PLC0415

    limits = PlanLimits(
        max_machines=settings.max_machines,
        chunk=pace.current.chunk,
        drift_limit=settings.drift_limit,
        assimilate=settings.assimilate,
        abandon_seconds=pace.current.penalty_seconds,
    )
    rates = RateLimits(
        session_seconds=pace.current.session_seconds,
        creation_seconds=settings.creation_seconds,
        penalty_seconds=pace.current.penalty_seconds,
        boot_seconds=settings.boot_seconds,
    )
    return limits, rates


@per_document
def _initializer() -> Function:
    from shepherd_core.adapters.agent_file import OperatorsAgent, our_agent  # noqa: PLC0415 - see the module's docstring
    from shepherd_core.loops.initializer import Initializer, StartOptions  # noqa: PLC0415

    settings, provider = providers.load(InitializerSettings)
    source, expected = settings.agent_source, None if settings.agent_sha256 == "any" else settings.agent_sha256
    load = our_agent if source is None else OperatorsAgent(source, expected, bucket_owner()).fetch
    dialer = adapters.LazyDialer(settings, pace.current.connect_seconds)

    def fetch() -> tuple[AgentBinary, bytes]:
        dialer.dialer()  # here, because a missing key must not count against a machine
        agent, ca_source = load(), settings.agent_ca_source
        if source is not None and expected is None:
            telemetry.warning("agent not checked: set agent_sha256", sha256=agent.sha256, source=source)
        return agent, b"" if ca_source is None else adapters.certificate(ca_source)

    options = StartOptions(
        path=settings.agent_path,
        endpoint=settings.agent_endpoint,
        answer_seconds=pace.current.answer_seconds,
        backoff=pace.current.start_backoff,
        installation_keys=lambda: adapters.installation_keys(settings.installation_public_key_parameter),
        require_known_host_key=settings.require_known_host_key,
    )
    return _machine_loop(Initializer(provider, dialer, fetch, options), provider, settings)


@per_document
def _recoverer() -> Function:
    from shepherd_core.domain.remediation import provider_steps  # noqa: PLC0415 - see the module's docstring
    from shepherd_core.loops.look import Look  # noqa: PLC0415
    from shepherd_core.loops.recoverer import Recoverer  # noqa: PLC0415
    from shepherd_core.rules.policy import possible  # noqa: PLC0415

    settings, provider = providers.load(RecovererSettings)
    first = settings.policy[0].kind
    if first.needs is not None and not possible(settings.policy, provider.capabilities):
        _require(provider, first.needs)
    dialer = adapters.LazyDialer(settings, pace.current.look_seconds)
    look = Look(dialer, settings.agent_path, pace.current.look_seconds, dialer.wait)
    return _machine_loop(
        Recoverer(provider, provider_steps(provider), recovery_rules(settings), look), provider, settings
    )


def recovery_rules(settings: RecovererSettings) -> RecoveryRules:
    """Return the rules of recovery."""
    from shepherd_core.domain.health import HealthTimeouts  # noqa: PLC0415 - see the module's docstring
    from shepherd_core.loops.recoverer import RecoveryRules  # noqa: PLC0415

    return RecoveryRules(
        timeouts=HealthTimeouts(
            startup_timeout_seconds=settings.startup_timeout_seconds,
            heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds,
            grace_seconds=settings.policy[0].timeouts.grace,
            failed_steps=bool(settings.policy_if_failed),
        ),
        backoff=pace.current.step_backoff,
        policy=settings.policy,
        failed_policy=settings.policy_if_failed,
        limits=settings.budget_limits,
        reset_after_seconds=max(pace.current.reset_after_seconds, settings.heartbeat_timeout_seconds),
    )


@per_document
def _updater() -> Function:
    from shepherd_core.loops.updater import Updater  # noqa: PLC0415 - see the module's docstring

    settings, provider = providers.load(UpdaterSettings)
    connection = adapters.bmdb(settings)
    updater = Updater(provider, connection, CLOCK, pace.current.session_seconds, pace.current.update_seconds)

    def plan(deadline: Deadline) -> dict[str, object]:
        require(connection)  # a plan opens no session, which would check the schema
        return {"plan": updater.plan(deadline)}

    return Function(provider.name, updater.run, plan, connection.close)


def _require(provider: Provider, capability: Capability) -> None:
    """Refuse a provider that lacks what a loop needs, before the loop touches anything."""
    if capability not in provider.capabilities:
        offered = ", ".join(sorted(provider.capabilities))
        fault = f"the provider is {provider.name!r}, which cannot {capability} machines. It can: {offered}."
        raise ConfigError([fault])


def _machine_loop(loop: Any, provider: Provider, settings: Any) -> Function:
    from shepherd_core.loops import runner  # noqa: PLC0415 - see the module's docstring

    limits = runner.RunLimits(
        settings.concurrency, pace.current.machine_seconds, pace.current.session_seconds, settings.history_days
    )
    connection = adapters.bmdb(settings)

    def plan(_: Deadline) -> dict[str, object]:
        from shepherd_core.loops.dry_run import dry_run  # noqa: PLC0415 - the same

        planned = dry_run(loop, provider.name, connection, CLOCK, limits)

        decisions = ((work, planned.decisions.get(work)) for work in planned.work)
        return {
            "plan": [
                {**asdict(work), "due_at": planned.due_at[work.machine_id], "decision": decision and str(decision)}
                for work, decision in decisions
            ],
            "recovery_limited": planned.limited,
        }

    return Function(
        provider.name,
        lambda deadline, runtime_info: runner.run(
            loop, provider.name, connection, CLOCK, limits, deadline=deadline, runtime_info=runtime_info
        ),
        plan,
        connection.close,
    )
