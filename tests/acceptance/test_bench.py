"""The bench itself: that it runs and holds figures to goals, at sizes at which they mean nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", ["claims", "heartbeats"])
def test_a_part_of_the_bench_writes_what_it_measured(part: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--output", str(tmp_path), part]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    record = json.loads((tmp_path / f"{part}.json").read_text(encoding="utf-8"))
    assert record["tables"]
    for table in record["tables"]:
        assert table["title"] in answer.stdout
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
