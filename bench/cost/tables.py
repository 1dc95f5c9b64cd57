"""The costs as tables: by purpose, and with other settings that make them smaller or larger."""

from dataclasses import replace

from bench.cost.formula import container, month
from bench.cost.inputs import PRICES_OF, Inputs

MACHINES = [10, 1_000, 10_000, 100_000]


def table(fleets: list[int], inputs: Inputs) -> str:
    """Return the table, with a column for each number of machines."""
    months = {machines: month(machines, inputs) for machines in fleets}
    lines = [
        f"US dollars a month (prices of {PRICES_OF}), by machines",
        f"{'':<21}" + "".join(f"{machines:>12,}" for machines in months),
        *(f"{what:<21}" + "".join(f"{each[what]:>12,.2f}" for each in months.values()) for what in month(0, inputs)),
        f"{'sum':<21}" + "".join(f"{sum(each.values()):>12,.2f}" for each in months.values()),
    ]
    return "\n".join(lines)


def levers(inputs: Inputs) -> dict[str, Inputs]:
    """Return the inputs that are compared, by name."""
    return {
        "as above": inputs,
        "every minute": replace(inputs, interval_seconds=60),
        "every 10 minutes": replace(inputs, interval_seconds=600),
        "HTTP API": replace(inputs, http_api=1),
        "no session resumed": replace(inputs, resumed_share=0),
        "connection kept": replace(inputs, kept_share=1),
        "API with 256 MB": replace(inputs, api_memory_gb=0.25),
        "with dashboard": replace(inputs, dashboard=3.0),
        "Provisioner each 10'": replace(inputs, provisioner_minutes=10),
        "before: all of these": replace(
            inputs, interval_seconds=60, http_api=1, resumed_share=0, dashboard=3.0, metrics=37, alarms=55
        ),
    }


def comparison(fleets: list[int], inputs: Inputs) -> str:
    """Return the table of the sums with each lever, and of containers."""
    lines = [f"{'sum, and with …':<21}" + "".join(f"{machines:>12,}" for machines in fleets)]
    for name, changed in levers(inputs).items():
        lines.append(f"{name:<21}" + "".join(f"{sum(month(each, changed).values()):>12,.2f}" for each in fleets))
    lines.append(f"{'containers':<21}" + "".join(f"{container(each, inputs):>12,.2f}" for each in fleets))
    return "\n".join(lines)
