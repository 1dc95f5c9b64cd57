"""The status of a fleet in Prometheus' text format, version 0.0.4: pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.machines.overview import FleetCount

from shepherdctl.descriptions.condition import Condition
from shepherdctl.descriptions.conditions import FleetStatus
from shepherdctl.output.printing import columns, visible

if TYPE_CHECKING:
    from shepherd_core.domain.states import State

_Sample = tuple[Mapping[str, str], float]
DELAYS = ("being_worked_on", "backing_off", "paused")
"""Why a machine in a state waits."""


def text(fleet: FleetStatus, wrong: Sequence[Condition]) -> str:
    """Return as metrics the status of the fleet, and what is wrong with it."""
    return "".join(_lines(fleet, wrong))


def counts_by_state(counts: Sequence[FleetCount]) -> list[dict[str, Any]]:
    """Return the sums of *counts* for each provider and state."""
    sums: dict[tuple[str, State], Counter[str]] = defaultdict(Counter)
    for each in counts:
        sums[each.provider, each.state].update({name: getattr(each, name) for name in ("machines", *DELAYS)})
    return [
        {"provider": provider, "state": state, **{name: found[name] for name in ("machines", *DELAYS)}}
        for (provider, state), found in sums.items()
    ]


def _lines(fleet: FleetStatus, wrong: Sequence[Condition]) -> Iterator[str]:
    counts, ticks = counts_by_state(fleet.machines), fleet.ticks
    yield from _gauge(
        "machines", "Machines by state.", ((_of(each, "provider", "state"), each["machines"]) for each in counts)
    )
    for name in DELAYS:
        about = f"Machines that are {name.replace('_', ' ')}, by state."
        yield from _gauge(f"machines_{name}", about, ((_of(each, "provider", "state"), each[name]) for each in counts))
    yield from _gauge(
        "recovery_steps_per_hour",
        "Steps an hour where recovery is limited, by brake; without a location, at the whole provider.",
        ((_of(each, "provider", "location", "brake"), each.per_hour) for each in fleet.budgets),
    )
    yield from _gauge(
        "recovery_waiting",
        "Machines that wait for the budget of recovery, where it is limited.",
        ((_of(each, "provider", "location", "brake"), each.waiting) for each in fleet.budgets),
    )
    yield from _gauge(
        "waiting_for_limit",
        "Places at the provider that stay unused because the limit of machines is reached.",
        ((_of(each, "provider"), each.waiting) for each in fleet.waiting),
    )
    yield from _gauge("pauses", "Pauses in force.", [({}, fleet.pauses)])
    oldest = fleet.oldest_transaction
    about = "Age of the oldest open transaction, from ten minutes on; else 0."
    yield from _gauge("oldest_transaction_seconds", about, [({}, oldest.seconds if oldest else 0)])
    yield from _gauge(
        "tick_age_seconds",
        "Seconds since the last tick of a loop ended.",
        ((_of(each, "loop", "provider"), (fleet.now - each.ended_at).total_seconds()) for each in ticks),
    )
    yield from _gauge(
        "tick_succeeded",
        "1 if the last tick of a loop succeeded, else 0.",
        ((_of(each, "loop", "provider"), each.outcome == "Succeeded") for each in ticks),
    )
    yield from _gauge(
        "condition",
        "1 for each thing that needs attention; shepherdctl status has a sentence and a cure for each.",
        ((_of(each, "name", "provider", "location", "loop") | {"severity": each.name.severity}, 1) for each in wrong),
    )
    yield from _gauge("attention", "Things that need attention.", [({}, len(wrong))])


def _gauge(name: str, about: str, samples: Iterable[_Sample]) -> Iterator[str]:
    lines = [f"shepherd_{name}{_labels(labels)} {float(value):.15g}\n" for labels, value in samples]
    if lines:
        yield f"# HELP shepherd_{name} {about}\n# TYPE shepherd_{name} gauge\n"
        yield from lines


def _of(record: Any, *names: str) -> dict[str, str]:
    found = columns(record) if is_dataclass(record) else record
    return {name: str(found[name] or "") for name in names}


def _labels(labels: Mapping[str, str]) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}" if labels else ""


def _escaped(value: str) -> str:
    return visible(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
