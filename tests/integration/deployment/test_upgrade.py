import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from shepherd_core.bmdb.schema.migrate import migrations
from shepherd_core.domain.pace import Pace

from simulator.lambda_.service import FunctionConfig, LambdaService
from tests.chaos.stage.processes import event_of
from tests.support.agents.signed_agent import SignedAgent
from tests.support.bmdb.fleet import Fleet
from tests.support.waiting import WAIT_SECONDS, eventually

ROOT = Path(__file__).parents[3]
LAYER = ROOT / "layers" / "shepherd_core"
OURS = migrations()[-1].version
NEXT = OURS + 1
ADDITIVE = f"""-- Code from version {OURS} can use this.
ALTER TABLE machine_agent_heartbeat ADD COLUMN next integer NOT NULL DEFAULT 0;
CREATE INDEX machine_agent_heartbeat_next ON machine_agent_heartbeat (next);
"""


def deployed(layer: Path, fleet: Fleet, machines: Path) -> LambdaService:
    environment = {
        **{name: value for name, value in os.environ.items() if name.startswith("AWS_")},
        "PYTHONPATH": f"{layer}:{ROOT}",
        **fleet.variables,
        "SHEPHERD_PROVIDER": "static",
        "SHEPHERD_PROVIDER_MACHINES": str(machines),
        "SHEPHERD_AGENT_ENDPOINT": "https://agents.example",
    }
    config = FunctionConfig(environment, timeout_seconds=300, pace=Pace(report_seconds=0))
    return LambdaService(dict.fromkeys(("migrator", "initializer", "agent_api"), config), machines.with_suffix(".log"))


def invoked(service: LambdaService, name: str, event: Mapping[str, Any]) -> Mapping[str, Any]:
    invocation = service.invoke(name, event)
    assert invocation.result is not None, invocation.error
    return invocation.result


def migrate(service: LambdaService, wanted: int, before: int) -> None:
    versions = {"ResourceProperties": wanted, "OldResourceProperties": before}
    asked = {name: {"SchemaVersion": str(version)} for name, version in versions.items()}
    assert invoked(service, "migrator", {"RequestType": "Update", **asked}) == {"SchemaVersion": wanted}


def tick(service: LambdaService) -> None:
    event = {"loop": "initializer", "scheduled_time": "2026-11-21T09:30:00Z", "dry_run": False}
    assert invoked(service, "initializer", event)["loop"] == "initializer"


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """Return the layer of the next version, which has one more migration."""
    layer = tmp_path / "layer"
    shutil.copytree(LAYER / "shepherd_core", layer / "shepherd_core")
    (layer / f"shepherd_core/bmdb/schema/migrations/{NEXT:04}_next.sql").write_text(ADDITIVE)
    return layer


@contextmanager
def reporting(service: LambdaService, fleet: Fleet) -> Iterator[list[int]]:
    """Let an agent report to the API of *service* without pause; yield the statuses of its answers."""
    statuses: list[int] = []
    ended = threading.Event()
    agent = SignedAgent(fleet)

    def report() -> None:
        at = 0
        while not ended.is_set():
            at = max(at + 1, time.time_ns() // 1_000_000)
            statuses.append(invoked(service, "agent_api", event_of(agent.request(at=at)))["statusCode"])

    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield statuses
    finally:
        ended.set()
        thread.join(WAIT_SECONDS)


def test_no_heartbeat_is_lost_in_upgrade_rollback_and_upgrade(own_fleet: Fleet, newer: Path, tmp_path: Path) -> None:
    """A reader holds the table that the migration changes when the first upgrade begins."""
    machines = tmp_path / "machines.json"
    machines.write_text("[]")
    reader = own_fleet.connect()
    with (
        deployed(LAYER, own_fleet, machines) as old,
        deployed(newer, own_fleet, machines) as new,
        ExitStack() as agents,
    ):
        heard = [agents.enter_context(reporting(old, own_fleet))]
        eventually(lambda: heard[0])
        reader.script("BEGIN; SELECT FROM machine_agent_heartbeat")
        release = threading.Timer(1, reader.script, ["COMMIT"])
        release.start()
        migrate(new, NEXT, OURS)
        heard.append(agents.enter_context(reporting(new, own_fleet)))
        for deployment in (old, new):
            tick(deployment)
        migrate(old, OURS, NEXT)
        tick(old)
        migrate(new, NEXT, OURS)
        tick(new)
        before = [len(each) for each in heard]
        eventually(lambda: all(len(each) > then for each, then in zip(heard, before, strict=True)))
    assert {status for each in heard for status in each} == {HTTPStatus.OK}
    assert own_fleet.sql("SELECT DISTINCT state FROM machine_states") == [["running"]]
