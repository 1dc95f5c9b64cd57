"""An upgrade with a migration, its rollback and the upgrade again, beside agents and functions of both versions."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from shepherd_core.bmdb.schema.migrate import migrations

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


class Deployment:
    """The functions of one version of the code, each a process as Lambda has it."""

    def __init__(self, layer: Path, fleet: Fleet, machines: Path) -> None:
        settings = fleet.settings
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SHEPHERD_")},
            "PYTHONPATH": f"{layer}:{ROOT}",
            "SHEPHERD_BMDB_HOST": settings.bmdb_host,
            "SHEPHERD_BMDB_NAME": settings.bmdb_name,
            "SHEPHERD_BMDB_USER": settings.bmdb_user,
            "SHEPHERD_PROVIDER": "static",
            "SHEPHERD_PROVIDER_MACHINES": str(machines),
            "SHEPHERD_AGENT_ENDPOINT": "https://agents.example",
        }

    @contextmanager
    def function(self, name: str) -> Iterator[Any]:
        """Yield a function that sends an event to the function *name*, and returns its result."""
        answers, write = os.pipe()
        command = [sys.executable, "-m", "simulator.lambda_.environment", f"functions/{name}/app.py", str(write)]
        with (
            os.fdopen(answers) as read,
            subprocess.Popen(
                [*command, '{"report_seconds": 0}'],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[write],
                text=True,
            ) as process,
        ):
            os.close(write)
            assert process.stdin is not None
            requests = process.stdin

            def invoke(event: dict[str, Any]) -> dict[str, Any]:
                print(json.dumps({"request_id": "1", "seconds": 300, "event": event}), file=requests, flush=True)
                answer = json.loads(read.readline())
                assert "result" in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

            yield invoke

    def migrate(self, wanted: int, before: int) -> dict[str, Any]:
        properties = {"SchemaVersion": str(wanted)}
        event = {
            "RequestType": "Update",
            "ResourceProperties": properties,
            "OldResourceProperties": {"SchemaVersion": str(before)},
        }
        with self.function("migrator") as migrator:
            result: dict[str, Any] = migrator(event)
        return result

    def tick(self) -> None:
        event = {"loop": "initializer", "scheduled_time": "2026-11-21T09:30:00Z", "dry_run": False}
        with self.function("initializer") as initializer:
            assert initializer(event)["loop"] == "initializer"


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """Return the layer of the next version, which has one more migration."""
    layer = tmp_path / "layer"
    shutil.copytree(LAYER / "shepherd_core", layer / "shepherd_core")
    (layer / f"shepherd_core/bmdb/schema/migrations/{NEXT:04}_next.sql").write_text(ADDITIVE)
    return layer


@contextmanager
def reporting(deployment: Deployment, fleet: Fleet) -> Iterator[list[int]]:
    """Let an agent report to the API of *deployment* without pause; yield the statuses of its answers."""
    statuses: list[int] = []
    ended = threading.Event()
    agent = SignedAgent(fleet)

    def report() -> None:
        with deployment.function("agent_api") as api:
            at = 0
            while not ended.is_set():
                at = max(at + 1, time.time_ns() // 1_000_000)
                statuses.append(api(event_of(agent.request(at=at)))["statusCode"])

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
    old, new = Deployment(LAYER, own_fleet, machines), Deployment(newer, own_fleet, machines)
    reader = own_fleet.connect()
    with ExitStack() as agents:
        heard = [agents.enter_context(reporting(old, own_fleet))]
        eventually(lambda: heard[0])
        reader.script("BEGIN; SELECT FROM machine_agent_heartbeat")
        release = threading.Timer(1, reader.script, ["COMMIT"])
        release.start()
        assert new.migrate(NEXT, OURS) == {"SchemaVersion": NEXT}
        heard.append(agents.enter_context(reporting(new, own_fleet)))
        for deployment in (old, new):
            deployment.tick()
        assert old.migrate(OURS, NEXT) == {"SchemaVersion": OURS}
        old.tick()
        assert new.migrate(NEXT, OURS) == {"SchemaVersion": NEXT}
        new.tick()
        before = [len(each) for each in heard]
        eventually(lambda: all(len(each) > then for each, then in zip(heard, before, strict=True)))
    assert {status for each in heard for status in each} == {HTTPStatus.OK}
    assert own_fleet.sql("SELECT DISTINCT state FROM machine_states") == [["running"]]
