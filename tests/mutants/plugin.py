"""
A pytest plugin for a copy of the package: records the code that each test reaches, or runs tests in a given order.

    MUTANTS_RECORD=FILE     write there as JSON what each test reached
    MUTANTS_ORDER=FILE      run the tests of that JSON alone, as they follow there; it says how long each takes
    MUTANTS_PATIENCE=N      besides ten times as long, so many seconds are given to each
"""

import builtins
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOO_LONG = 99
"""The exit status of pytest when a test hangs."""


def pytest_configure(config: pytest.Config) -> None:
    if "MUTANTS_RECORD" in os.environ:
        config.pluginmanager.register(_Recorder(Path(os.environ["MUTANTS_RECORD"])))
    if "MUTANTS_ORDER" in os.environ:
        patience = float(os.environ.get("MUTANTS_PATIENCE", "60"))
        config.pluginmanager.register(_Chosen(json.loads(Path(os.environ["MUTANTS_ORDER"]).read_text()), patience))


class _Recorder:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._shared: set[str] = set()
        self._tests: dict[str, tuple[float, list[str]]] = {}
        self._failed: set[str] = set()
        self._shared_seconds = 0.0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Record separately the code that a shared fixture reaches: all of its tests reach it."""
        if fixturedef.scope == "function":
            yield
            return
        own, began = _drained(), time.monotonic()
        yield
        self._shared_seconds += time.monotonic() - began
        self._shared |= _drained()
        for place in own:
            builtins._reached(place)  # type: ignore[attr-defined]  # the copy puts it there

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._shared |= _drained()  # at import
        self._shared_seconds, began = 0.0, time.monotonic()
        yield
        seconds = time.monotonic() - began - self._shared_seconds
        self._tests[item.nodeid] = (round(seconds, 3), sorted(_drained()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Exclude tests that fail or are skipped without a mutant."""
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        tests = {name: test for name, test in self._tests.items() if name not in self._failed}
        self._file.write_text(json.dumps({"shared": sorted(self._shared), "tests": tests}))


def _drained() -> set[str]:
    """Return the code reached since the last call, in this process or its children."""
    reached = getattr(builtins, "_reached", None)
    if reached is None:
        return set()
    places = set(reached.file.read_text().split("\n")) - {""} if reached.file.exists() else set()
    if places:
        os.truncate(reached.file, 0)
    reached.seen.clear()
    return places


class _Chosen:
    def __init__(self, order: dict[str, float], patience: float) -> None:
        self._order = order
        self._patience = patience
        self._rank = {name: rank for rank, name in enumerate(order)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._rank]
        items[:] = sorted(chosen, key=lambda item: self._rank[item.nodeid])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        signal.signal(signal.SIGALRM, lambda *_: pytest.exit(f"{item.nodeid} takes too long", TOO_LONG))
        signal.setitimer(signal.ITIMER_REAL, self._patience + 10 * self._order[item.nodeid])
        yield
        signal.setitimer(signal.ITIMER_REAL, 0)
