"""Adopting, forgetting and releasing machines in the console: a comparison with the provider decides."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.machine import ProviderId
from shepherd_core.operator.adopt_forget import ActionResult, Adopt, Forget
from shepherd_core.rules.drift import DriftKind
from shepherd_core.wiring import operators

from shepherdctl import actions
from shepherdctl.console import forms
from shepherdctl.console.changes.plans import Asked, ChangePlan, Shown, command
from shepherdctl.database import explain_schema_mismatch
from shepherdctl.output.printing import one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shepherd_core.operator.adopt_forget import ActionOutcome, OperatorAction
    from shepherd_core.operator.drift_repair import DriftRepair


def _repair(line: str, action: Callable[[DriftRepair], OperatorAction]) -> ChangePlan:
    """Return the plan of *action*."""
    shown: list[list[ActionOutcome]] = []

    def run(dry_run: bool) -> Shown:
        with explain_schema_mismatch(), closing((repair := operators.drift_repair()).connection):
            wanted = action(repair)
            if not dry_run:
                outcomes = actions.carry_out(repair, wanted, shown[-1])
                if all(outcome.result is ActionResult.REFUSED for outcome in outcomes):
                    raise ShepherdError("; ".join(f"refused: {outcome.text}" for outcome in outcomes))
                return _outcomes(outcomes)
            shown.append(wanted.evaluate(actions.compare(repair)))
            return _outcomes(shown[-1])

    return ChangePlan(line, run, two_phase=True)


def _outcomes(outcomes: Sequence[ActionOutcome]) -> Shown:
    return Shown(
        ("Provider id", "Machine", "Result", "Reason"),
        [(outcome.provider_id, outcome.machine_id, outcome.result, outcome.text) for outcome in outcomes],
        possible=any(outcome.result in (ActionResult.READY, ActionResult.BEGUN) for outcome in outcomes),
        typed=actions.confirmation(outcomes),
    )


def adopt(asked: Asked) -> ChangePlan:
    """Return the plan to adopt a machine."""
    name = ProviderId(forms.required(asked.form, "provider_id", str))
    kind = DriftKind(forms.required(asked.form, "class", one_of(*actions.ADOPTABLE)))
    line = command("machine adopt", name, **{"class": kind})
    return _repair(line, lambda repair: Adopt((name,), kind, repair.max_machines, asked.operator))


def forget(asked: Asked) -> ChangePlan:
    """Return the plan to forget a machine."""
    machine_id, order = asked.machine_id, asked.order
    line = command("machine forget", machine_id, reason=order.reason)
    return _repair(line, lambda _: Forget((machine_id,), order))


def release(asked: Asked) -> ChangePlan:
    """Return the plan to release a machine."""
    machine_id, order = asked.machine_id, asked.order
    flag = order.despite_heartbeat
    line = command("machine release", machine_id, despite_heartbeat=flag, reason=order.reason)
    return _repair(line, lambda repair: actions.release(repair, [machine_id], order, cancel=False))


def cancel_release(asked: Asked) -> ChangePlan:
    """Return the plan to cancel the release of a machine."""
    machine_id, order = asked.machine_id, asked.order
    line = command("machine release", machine_id, cancel=True, reason=order.reason)
    return _repair(line, lambda repair: actions.release(repair, [machine_id], order, cancel=True))
