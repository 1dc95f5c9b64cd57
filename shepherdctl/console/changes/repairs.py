"""Adopting, forgetting and releasing machines in the console: two comparisons with the provider must agree on it."""

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
    from shepherd_core.rules.drift import Comparison


def _repair(
    asked: Asked, line: str, action: Callable[[DriftRepair], OperatorAction], *, ask_for_one: bool = False
) -> ChangePlan:
    """Return the plan of *action*; the first comparison of its dry run is also the first of the change itself."""
    interval = forms.interval(asked.form)
    compared: list[Comparison] = []

    def run(dry_run: bool) -> Shown:
        with explain_schema_mismatch(), closing((repair := operators.drift_repair(interval)).connection):
            wanted = action(repair)
            if not dry_run:
                outcomes = actions.carry_out(repair, wanted, compared[-1])
                if all(outcome.result is ActionResult.REFUSED for outcome in outcomes):
                    raise ShepherdError("; ".join(f"refused: {outcome.text}" for outcome in outcomes))
                return _outcomes(outcomes)
            compared.append(actions.compare(repair))
            return _outcomes(actions.dry_run(repair, wanted, compared[-1]), ask_for_one=ask_for_one)

    return ChangePlan(f"{line} --interval {interval:.0f}", run, two_phase=True)


def _outcomes(outcomes: Sequence[ActionOutcome], *, ask_for_one: bool = False) -> Shown:
    return Shown(
        ("Provider id", "Machine", "Result", "Reason"),
        [(outcome.provider_id, outcome.machine_id, outcome.result, outcome.text) for outcome in outcomes],
        possible=any(outcome.result in (ActionResult.READY, ActionResult.BEGUN) for outcome in outcomes),
        typed=actions.confirmation(outcomes, ask_for_one=ask_for_one),
    )


def adopt(asked: Asked) -> ChangePlan:
    """Return the plan to adopt a machine."""
    name = ProviderId(forms.required(asked.form, "provider_id", str))
    kind = DriftKind(forms.required(asked.form, "class", one_of(*actions.ADOPTABLE)))
    line = command("machine adopt", name, **{"class": kind})
    return _repair(asked, line, lambda repair: Adopt((name,), kind, repair.max_machines, asked.operator))


def forget(asked: Asked) -> ChangePlan:
    """Return the plan to forget a machine."""
    machine_id, order = asked.machine_id, asked.order
    line = command("machine forget", machine_id, reason=order.reason)
    return _repair(asked, line, lambda _: Forget((machine_id,), order))


def release(asked: Asked) -> ChangePlan:
    """Return the plan to release a machine."""
    machine_id, order = asked.machine_id, asked.order
    flag = order.despite_heartbeat
    line = command("machine release", machine_id, despite_heartbeat=flag, reason=order.reason)
    return _repair(
        asked,
        line,
        lambda repair: actions.release(repair, [machine_id], order, cancel=False),
        ask_for_one=True,
    )


def cancel_release(asked: Asked) -> ChangePlan:
    """Return the plan to cancel the release of a machine."""
    machine_id, order = asked.machine_id, asked.order
    line = command("machine release", machine_id, cancel=True, reason=order.reason)
    return _repair(asked, line, lambda repair: actions.release(repair, [machine_id], order, cancel=True))
