"""The faults of one simulated API: which of them hit a call."""

import itertools
import threading
from collections.abc import Iterable

from simulator.environment.faults import Delay, Rule


class FaultScript:
    """Counts calls and returns the rules that hit them. Safe to use from any thread."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._lock = threading.Lock()
        self._rules = [(rule, itertools.count(1)) for rule in rules]

    def add(self, rule: Rule) -> None:
        """Add *rule*; it counts the calls from now on."""
        with self._lock:
            self._rules.append((rule, itertools.count(1)))

    def clear(self) -> None:
        """Drop all rules."""
        with self._lock:
            self._rules.clear()

    def hits(self, method: str, path: str) -> tuple[list[Delay], Rule | None]:
        """Count a call of *path*, which is below the base URL; return the delays and the other rule that hit it."""
        with self._lock:
            hits = [rule for rule, counter in self._rules if rule.matches(method, path) and rule.hits(next(counter))]
        delays = [rule for rule in hits if isinstance(rule, Delay)]
        return delays, next((rule for rule in hits if not isinstance(rule, Delay)), None)
