"""The costs as tables: by purpose, by the interval between heartbeats, and with other settings."""

from dataclasses import replace

from simulator.cost.formula import container, found_after, month
from simulator.cost.inputs import PRICES_OF, Inputs

MACHINES = [10, 1_000, 10_000, 100_000]
INTERVALS = (240, 600, 900)
"""Seconds."""


def table(fleets: list[int], inputs: Inputs) -> str:
    """Return the table by purpose, with a column for each number of machines."""
    months = [month(machines, inputs) for machines in fleets]
    sums = [sum(each.values()) for each in months]
    outside = inputs.database + inputs.network
    return "\n".join(
        [
            f"US dollars a month (prices of {PRICES_OF}), by machines",
            _row("", fleets, "12,"),
            *(_row(what, [each[what] for each in months]) for what in month(0, inputs)),
            _row("sum", sums),
            _row("database", [inputs.database for _ in fleets]),
            _row("network", [inputs.network for _ in fleets]),
            _row("total", [each + outside for each in sums]),
        ]
    )


def intervals(fleets: list[int], inputs: Inputs) -> str:
    """Return the table of the sums by interval, each with the minutes after which a dead machine is found."""
    lines = [_row("interval: found after", fleets, "12,")]
    for seconds in INTERVALS:
        changed = replace(inputs, interval_seconds=seconds)
        lines.append(_row(f"{seconds} s: {found_after(changed):g} minutes", sums(fleets, changed)))
    return "\n".join(lines)


def sums(fleets: list[int], inputs: Inputs) -> list[float]:
    """Return the dollars of a month without database and network."""
    return [sum(month(machines, inputs).values()) for machines in fleets]


def comparison(fleets: list[int], inputs: Inputs) -> str:
    """Return the table of the sums with other settings, and of containers."""
    ways = {
        "as above": inputs,
        "every minute": replace(inputs, interval_seconds=60),
        "HTTP API": replace(inputs, http_api=1),
        "no session resumed": replace(inputs, resumed_share=0),
        "connection kept": replace(inputs, kept_share=1),
        "API with 256 MB": replace(inputs, api_memory_gb=0.25),
        "with dashboard": replace(inputs, dashboard=3.0),
        "Provisioner each 10'": replace(inputs, provisioner_minutes=10),
    }
    lines = [_row("sum, and with …", fleets, "12,")]
    lines += [_row(name, sums(fleets, changed)) for name, changed in ways.items()]
    lines.append(_row("containers", [container(machines, inputs) for machines in fleets]))
    return "\n".join(lines)


def _row(name: str, figures: list[int] | list[float], form: str = "12,.2f") -> str:
    return f"{name:<21}" + "".join(f"{each:>{form}}" for each in figures)
