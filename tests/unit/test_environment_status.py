"""What the simulator calls a violated invariant."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

from simulator.environment.status import violated_invariants


def environment(counts: dict[tuple[str, str], int]) -> Any:
    """Return an environment without machines, whose functions counted this."""
    source = SimpleNamespace(errors=[], in_use=dict, names=list)
    return SimpleNamespace(
        machine_source=source,
        machines=list,
        pool=SimpleNamespace(all_agents=dict),
        functions=SimpleNamespace(counts=Counter(counts)),
    )


def test_a_repaired_due_row_violates_an_invariant() -> None:
    """The repair is a safety net: in every environment that we make, all writers keep due rows and facts together."""
    assert violated_invariants(environment({("updater", "invoked"): 3})) == []
    assert violated_invariants(environment({("updater", "repaired"): 2})) == [
        "updater repaired the due rows of 2 machines"
    ]
