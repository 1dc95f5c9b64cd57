"""The status of a fleet in Prometheus' text format, version 0.0.4: pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from datetime import datetime
from typing import Any

from shepherdctl.output.printing import columns, visible

_Sample = tuple[Mapping[str, str], float]
DELAYS = ("being_worked_on", "backing_off", "paused")
"""Why a machine in a state waits."""


def text(found: Mapping[str, Any], attention: int, now: datetime) -> str:
    """Return as metrics *found*, of which ``shepherdctl status`` makes its JSON document."""
    return "".join(_lines(found, attention, now))


def _lines(found: Mapping[str, Any], attention: int, now: datetime) -> Iterator[str]:
    counts, ticks = found["machines"], found["ticks"]
    yield from _gauge(
        "machines", "Machines by state.", ((_of(each, "provider", "state"), each.machines) for each in counts)
    )
    for name in DELAYS:
        about = f"Machines that are {name.replace('_', ' ')}, by state."
        yield from _gauge(
            f"machines_{name}", about, ((_of(each, "provider", "state"), getattr(each, name)) for each in counts)
        )
    yield from _gauge(
        "recovery_steps_per_hour",
        "Steps an hour where recovery is limited, by brake; without a location, at the whole provider.",
        ((_of(each, "provider", "location", "brake"), each["per_hour"]) for each in found["budgets"]),
    )
    yield from _gauge(
        "recovery_waiting",
        "Machines that wait for the budget of recovery, where it is limited.",
        ((_of(each, "provider", "location", "brake"), each["waiting"]) for each in found["budgets"]),
    )
    yield from _gauge(
        "waiting_for_limit",
        "Places at the provider that stay unused because the limit of machines is reached.",
        ((_of(each, "provider"), each.waiting) for each in found["waiting"]),
    )
    yield from _gauge("pauses", "Pauses in force.", [({}, found["pauses"])])
    oldest = found["oldest_transaction"]
    about = "Age of the oldest open transaction, from ten minutes on; else 0."
    yield from _gauge("oldest_transaction_seconds", about, [({}, oldest.seconds if oldest else 0)])
    yield from _gauge(
        "tick_age_seconds",
        "Seconds since the last tick of a loop ended.",
        ((_of(each, "loop", "provider"), (now - each.ended_at).total_seconds()) for each in ticks),
    )
    yield from _gauge(
        "tick_succeeded",
        "1 if the last tick of a loop succeeded, else 0.",
        ((_of(each, "loop", "provider"), each.outcome == "Succeeded") for each in ticks),
    )
    yield from _gauge(
        "attention", "Things that an operator should look at; shepherdctl status names them.", [({}, attention)]
    )


def _gauge(name: str, about: str, samples: Iterable[_Sample]) -> Iterator[str]:
    lines = [f"shepherd_{name}{_labels(labels)} {float(value):.15g}\n" for labels, value in samples]
    if lines:
        yield f"# HELP shepherd_{name} {about}\n# TYPE shepherd_{name} gauge\n"
        yield from lines


def _of(record: Any, *names: str) -> dict[str, str]:
    found = columns(record) if is_dataclass(record) else record
    return {name: str(found[name]) for name in names}


def _labels(labels: Mapping[str, str]) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}" if labels else ""


def _escaped(value: str) -> str:
    return visible(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
