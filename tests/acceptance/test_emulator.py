"""The functions as Lambda runs them: real bootstrap, real context, and a timeout that kills."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from shepherd_core.bmdb.schema.migrate import migrations
from shepherd_core.settings.functions.specs import LOOPS

from simulator.environment.environment import Environment, EnvironmentSettings
from simulator.lambda_.emulator import Emulator
from simulator.lambda_.invoke import event, invoke, make_work
from tests.support.waiting import eventually

MACHINES, SPEED = 3, 240


def lines_by_request(log: str) -> dict[str, list[dict[str, Any]]]:
    """Return what the functions wrote during each request; fail on a line that is neither theirs nor the emulator's."""
    requests: dict[str, list[dict[str, Any]]] = {}
    for line in log.splitlines():
        if line.startswith("START RequestId: "):
            request = line.split()[2]
            requests[request] = []
        elif not line.startswith(("END RequestId: ", "REPORT RequestId: ")):
            assert line.startswith("{"), log[log.index(line) :]
            requests[request].append(json.loads(line))
    return requests


def history(environment: Environment, process: str) -> list[list[str]]:
    return [
        [entry.event for entry in reversed(environment.history(row.machine_id)) if entry.process == process]
        for row in environment.machines()
    ]


def test_a_function_returns_counts_and_logs_what_it_committed(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Operators see these three and nothing else: the result, the logs with the request they belong to, the BMDB.

    The Migrator comes first, on an empty database, as in a deployment; everything else needs its tables.
    """
    started: list[int] = []
    with Environment(
        EnvironmentSettings(machines=MACHINES, speed=SPEED, scheduled=False, migrated=False)
    ) as environment:
        with Emulator(environment.configs, environment.log) as emulator:
            assert invoke(environment, emulator, "migrator", event("migrator"), shown=True)
            assert environment.machines() == []
            assert json.loads(capsys.readouterr().out) == {"SchemaVersion": migrations()[-1].version}
            before = len(environment.log.read_text())
            for function in LOOPS:
                assert invoke(environment, emulator, function, event(function), shown=True)
                started.append(sum(row.agent_started_at is not None for row in environment.machines()))
        assert (len(environment.machines()), started) == (MACHINES, [0, MACHINES, 1, 1])
        assert history(environment, "ShepherdAgentStart") == [["Started", "Finished"]] * MACHINES
        # One goes on reporting, or the Recoverer would suspect the endpoint.
        recovered = ["Started", "Looked", "Attempted", "Finished"]
        assert sorted(history(environment, "ShepherdRecovery")) == [[], *[recovered] * (MACHINES - 1)]
        requests = lines_by_request(environment.log.read_text()[before:])
        shown = capsys.readouterr()
        with Emulator(environment.configs, environment.log) as emulator:  # whose agents sign with keys on record
            assert invoke(environment, emulator, "agent_api", None, shown=True)
            example = emulator.invoke("agent_api", event("agent_api"))
        answers = [json.loads(capsys.readouterr().out)["statusCode"], (example.result or {})["statusCode"]]
        assert answers == [200, 401], "the example event has no valid signature"
    results = [json.loads(line) for line in shown.out.splitlines()]
    assert [result["loop"] for result in results] == list(LOOPS)
    assert [results[0]["created"], results[1]["finished"], results[2]["finished"]] == [MACHINES, MACHINES, MACHINES - 1]
    assert len(requests) == len(LOOPS)
    assert all(f"START RequestId: {request}" in shown.err for request in requests)
    for (request, lines), result in zip(requests.items(), results, strict=True):
        (counts,) = [line for line in lines if line.get("message") == "counts"]
        result.pop("dry_run", None)
        assert {name: counts[name] for name in result} == result
        others = [line for line in lines if line is not counts]
        assert {line.get("request_id", line.get("requestId")) for line in others} <= {request}
    assert Counter(line.get("message") for line in next(iter(requests.values())))["machine provided"] == MACHINES


def test_a_function_killed_amid_a_batch_leaves_nothing_stuck() -> None:
    """
    Lambda kills without notice, and no code cleans up.

    The machines hang, and then the network between the function and the BMDB
    does, so that the function can neither end its work nor give it back in time.
    What it had sent arrives when the network is back, and must not count any more.
    """
    with Environment(
        EnvironmentSettings(machines=MACHINES, speed=SPEED, scheduled=False, remote="127.41.0.1")
    ) as environment:
        config = environment.configs["initializer"]
        short = replace(config.pace, session_seconds=3, machine_seconds=2)
        # As short as it can be: a function that could not work on a machine in its time refuses to begin.
        configs = {**environment.configs, "initializer": replace(config, pace=short, timeout_seconds=11)}
        with Emulator(configs, environment.log) as emulator, ThreadPoolExecutor(1) as pool:
            assert emulator.invoke("provisioner", event("provisioner")).error is None
            make_work(environment, "initializer")
            warm = emulator.invoke("initializer", {**event("initializer"), "dry_run": True})
            assert len((warm.result or {})["plan"]) == MACHINES
            for name in environment.pool.names():
                environment.pool.hang(name)

            killed = pool.submit(emulator.invoke, "initializer", event("initializer"))
            eventually(lambda: sum(row.being_worked_on for row in environment.machines()) == MACHINES, seconds=120)
            environment.proxy.stall()
            assert killed.result().error == "Task timed out after 11.00 seconds"
            assert history(environment, "ShepherdAgentStart") == [["Started"]] * MACHINES

            environment.proxy.resume()
            for name in environment.pool.names():
                environment.pool.reboot(name)
            make_work(environment, "initializer")
        with Emulator(environment.configs, environment.log) as emulator:  # with all the time that there is
            ended = emulator.invoke("initializer", event("initializer"))
            assert (ended.result or {})["claimed"] == 0, "it ends the work, and the machines back off"
            dry = {**event("initializer"), "dry_run": True}
            eventually(lambda: bool((emulator.invoke("initializer", dry).result or {})["plan"]), seconds=120)
            again = emulator.invoke("initializer", event("initializer"))
        assert again.error is None
        result = again.result or {}
        assert (result["claimed"], result["finished"], result["backlog"]) == (MACHINES, MACHINES, 0)
        assert history(environment, "ShepherdAgentStart") == [["Started", "Expired", "Started", "Finished"]] * MACHINES
        assert all(row.agent_started_at is not None for row in environment.machines())
        assert not any(row.being_worked_on for row in environment.machines())
