"""Builds from the settings what operators do through the provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.bmdb.schema.migrate import require
from shepherd_core.settings.functions.bmdb import OPERATOR
from shepherd_core.settings.functions.loops import ProvisionerSettings, RecovererSettings
from shepherd_core.wiring import adapters, pace, providers

if TYPE_CHECKING:
    from shepherd_core.domain.remediation import StepKind
    from shepherd_core.operator.drift_repair import DriftRepair
    from shepherd_core.operator.reboot import Reboot


def drift_repair() -> DriftRepair:
    """
    Return the operators' drift repair, with the settings of the Provisioner.

    Raises:
        ConfigError: the settings are wrong.
        SchemaMismatch, BmdbError: the BMDB cannot be used.
    """
    from shepherd_core.operator.drift_repair import DriftRepair  # noqa: PLC0415 - only operators need it

    ours, provider = providers.load(ProvisionerSettings)
    connection = adapters.bmdb(ours, role=OPERATOR)
    require(connection)  # a comparison opens no session, which would check the schema
    return DriftRepair(provider, connection, adapters.CLOCK, ours.max_machines, pace.current.session_seconds)


def reboot(kind: StepKind) -> Reboot:
    """
    Return the action by which an operator takes a step of this *kind*, with the settings of the Recoverer.

    Raises:
        ConfigError: the settings are wrong.
        SchemaMismatch, BmdbError: the BMDB cannot be used.
        NotSupported: the provider cannot take the step.
    """
    from shepherd_core.domain.remediation import provider_steps  # noqa: PLC0415 - only operators need it
    from shepherd_core.operator.reboot import Reboot  # noqa: PLC0415
    from shepherd_core.recovery import Steps  # noqa: PLC0415
    from shepherd_core.rules.policy import step_of  # noqa: PLC0415

    ours, provider = providers.load(RecovererSettings)
    connection = adapters.bmdb(ours, role=OPERATOR)
    require(connection)
    return Reboot(
        provider=provider,
        connection=connection,
        clock=adapters.CLOCK,
        step=step_of(ours.policy, kind),
        steps=Steps(provider_steps(provider), pace.current.step_backoff),
        reset_after_seconds=max(pace.current.reset_after_seconds, ours.heartbeat_timeout_seconds),
        machine_seconds=pace.current.machine_seconds,
        session_seconds=pace.current.session_seconds,
    )
