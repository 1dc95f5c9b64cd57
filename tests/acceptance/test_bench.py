import json
import sys
from pathlib import Path

import pytest

from tests.support.processes import ran

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", ["claims", "heartbeats"])
def test_a_part_of_the_bench_writes_what_it_measured(part: str, tmp_path: Path) -> None:
    answer = ran(sys.executable, "-m", "bench", "--quick", "--output", tmp_path, part, cwd=ROOT, timeout=120)
    record = json.loads((tmp_path / f"{part}.json").read_text(encoding="utf-8"))
    assert record["tables"]
    for table in record["tables"]:
        assert table["title"] in answer.stdout
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
