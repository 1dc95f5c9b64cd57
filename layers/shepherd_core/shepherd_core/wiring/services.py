"""The agent API and what operators do through the provider, built from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.bmdb.schema.migrate import require
from shepherd_core.settings.functions.loops import ProvisionerSettings, RecovererSettings
from shepherd_core.settings.functions.services import AgentApiSettings
from shepherd_core.settings.relays import parse_relays
from shepherd_core.wiring import adapters, providers, settings

if TYPE_CHECKING:
    from shepherd_core.agent.endpoint import AgentApi
    from shepherd_core.domain.remediation import StepKind
    from shepherd_core.operator.drift_repair import DriftRepair
    from shepherd_core.operator.reboot import Reboot


@settings.per_document
def agent_api() -> AgentApi:
    """
    Return the agent API as the settings configure it; the same object as long as they do. Connects to nothing yet.

    Raises:
        ConfigError: the settings are wrong.
    """
    from shepherd_core.agent.endpoint import AgentApi  # noqa: PLC0415 - only this function needs it
    from shepherd_core.agent.judgement import Limits  # noqa: PLC0415

    (ours,) = settings.load(AgentApiSettings)
    # Agents retry. A row that stays locked must not take the time of the other heartbeats of a batch.
    connection = adapters.bmdb(ours, attempts=2, lock_seconds=ours.bmdb_statement_timeout_seconds / 5)
    limits = Limits(
        body_bytes=ours.max_body_bytes,
        stale_seconds=ours.stale_seconds,
        report_seconds=ours.report_seconds,
        hardware_seconds=ours.hardware_report_seconds,
        batch_bytes=ours.max_batch_bytes,
        interval_seconds=ours.heartbeat_interval_seconds,
        path_prefix=ours.path_prefix,
    )
    return AgentApi(connection, limits, parse_relays(ours.relays), ours.new_agent_endpoint)


def drift_repair(interval_seconds: float) -> DriftRepair:
    """
    Return the operators' drift repair, with the settings of the Provisioner.

    Raises:
        ConfigError: the settings are wrong.
        SchemaMismatch, BmdbError: the BMDB cannot be used.
    """
    from shepherd_core.operator.drift_repair import DriftRepair  # noqa: PLC0415 - only operators need it

    ours, provider = providers.load(ProvisionerSettings)
    connection = adapters.bmdb(ours, role="operator")
    require(connection)  # a comparison opens no session, which would check the schema
    return DriftRepair(provider, connection, adapters.CLOCK, ours.max_machines, ours.session_seconds, interval_seconds)


def single_step(kind: StepKind) -> Reboot:
    """
    Return what takes a step of this *kind* for an operator, with the settings of the Recoverer.

    Raises:
        ConfigError: the settings are wrong.
        SchemaMismatch, BmdbError: the BMDB cannot be used.
        NotSupported: the provider cannot take the step.
    """
    from shepherd_core.operator.reboot import Reboot  # noqa: PLC0415 - only operators need it
    from shepherd_core.rules.policy import step_of  # noqa: PLC0415

    ours, provider = providers.load(RecovererSettings)
    connection = adapters.bmdb(ours, role="operator")
    require(connection)
    made = Reboot(
        provider=provider,
        connection=connection,
        clock=adapters.CLOCK,
        step=step_of(ours.policy, kind),
        policy=ours.policy,
        reset_after_seconds=ours.reset_after_seconds,
        backoff=ours.backoff,
        machine_seconds=ours.machine_seconds,
        session_seconds=ours.session_seconds,
    )
    made.require()
    return made
