"""The drift between provider, BMDB and heartbeats, with the command that repairs it."""

from contextlib import closing
from typing import Any

from shepherd_core.rules.drift import Comparison, Drift, DriftKind
from shepherd_core.wiring import operators

from shepherdctl import actions
from shepherdctl.database import explain_schema_mismatch

_ADOPT = {
    DriftKind.ADOPTABLE: "machine adopt {}",
    DriftKind.FOREIGN: "find out who owns it; machine adopt --class foreign {}",
    DriftKind.DUPLICATED: "find out which is the copy; machine adopt --class duplicated {}, then machine release",
    DriftKind.DISPUTED: "machine adopt --class disputed {}, then machine release",
}


def find_drift() -> tuple[str, list[dict[str, Any]]]:
    """
    Return the name of the provider, and a record of each machine that has drift.

    Raises:
        ShepherdError: the settings are wrong, or the provider or the BMDB cannot be read.
    """
    with explain_schema_mismatch(), closing((sides := operators.drift_repair()).connection):
        comparison = actions.compare(sides)
    return sides.provider.name, [
        {
            "class": drift.kind,
            "provider_id": drift.provider_id,
            "machine_id": drift.machine_id,
            "description": drift.text,
            "operator_action": operator_action(drift, comparison),
            "repair": repair(drift, comparison),
        }
        for drift in comparison.drift.values()
    ]


def operator_action(drift: Drift, comparison: Comparison) -> str:
    """Return the command that repairs *drift*, or what to find out first."""
    match repair(drift, comparison):
        case None:
            return "find out why the provider does not list it"
        case "adopt":
            return _ADOPT[drift.kind].format(drift.provider_id)
        case command:
            return f"machine {command} {drift.machine_id}"


def repair(drift: Drift, comparison: Comparison) -> str | None:
    """Return the name of the command that repairs *drift*; None: no command does."""
    if drift.machine_id is None or drift.kind is DriftKind.ADOPTABLE:
        return "adopt"
    if drift.kind is DriftKind.DISPUTED:
        return None
    return "release" if comparison.has(drift.provider_id) else "forget"
