"""The command that tells what the fleet consists of."""

import csv
import io
from uuid import UUID

import pytest

from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine

TIB = 1 << 40
NAMES = ["provider", "location", "machines", "unreported", "hardware_threads", "memory_bytes", "disks", "disk_bytes"]


def reported(fleet: Fleet, location: str | None, provider: str, *sums: int) -> UUID:
    """Return a machine whose report adds up to threads, bytes of memory, disks, and bytes on them."""
    machine_id = fleet.locate(fleet.provided_machine(provider), location)
    columns = ("hardware_threads", "memory_bytes", "disks", "disk_bytes")
    summed = dict(zip(columns, sums, strict=True))
    fleet.plant("machine_hardware_report", machine_id=machine_id, hardware_report_raw=b"", **summed)
    return machine_id


@pytest.fixture
def shepherdctl(fleet: Fleet) -> CommandLine:
    reported(fleet, "Amsterdam", "equinix", 64, TIB, 2, 7 * TIB // 2)
    reported(fleet, "Amsterdam", "equinix", 32, TIB // 2, 1, 960197124096)
    fleet.locate(fleet.provided_machine("equinix"), "Amsterdam")
    fleet.locate(fleet.provided_machine("equinix"), "Paris")
    reported(fleet, None, "static", 8, 17179869184, 0, 0)
    fleet.bare_machine()
    return CommandLine(fleet.settings)


EXACT: list[list[str | int | None]] = [
    ["equinix", "Amsterdam", 3, 1, 96, 3 * TIB // 2, 3, 7 * TIB // 2 + 960197124096],
    ["equinix", "Paris", 1, 1, 0, 0, 0, 0],
    ["static", None, 1, 0, 8, 17179869184, 0, 0],
]
TOTAL = [5, 2, 104, 3 * TIB // 2 + 17179869184, 3, 7 * TIB // 2 + 960197124096]


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def test_people_get_rounded_sums_and_programs_exact_ones(shepherdctl: CommandLine) -> None:
    result = shepherdctl("inventory")
    assert "equinix   Amsterdam         3          1       96  1.5 TiB      3   4.4 TiB" in result.stdout.splitlines()
    assert result.stderr == "2 machines sent no hardware report: their hardware is not counted\n"
    assert shepherdctl.load("inventory") == {
        "locations": [dict(zip(NAMES, row, strict=True)) for row in EXACT],
        "total": dict(zip(NAMES[2:], TOTAL, strict=True)),
    }
    result = shepherdctl("inventory", "-o", "csv")
    assert rows_of(result.stdout_bytes.decode()) == [
        NAMES,
        *([str("" if value is None else value) for value in row] for row in EXACT),
    ]
    assert result.stderr == ""
    for words, machines in {
        "--provider equinix": 4,
        "--location Amsterdam": 3,
        "--provider equinix --location Paris": 1,
        "--provider static --location Paris": 0,
        "--location amsterdam": 0,
    }.items():
        assert shepherdctl.load("inventory", *words.split())["total"]["machines"] == machines, words
    assert len(shepherdctl.read("inventory", "--location", "Amsterdam").splitlines()) == 1 + 1, "one row has no total"


@pytest.mark.parametrize(
    ("location", "read"),
    [
        ('Paris, "4"', 'Paris, "4"'),
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@sum", "'@sum"),
        (" =1+1", "'=1+1"),
        ("\t=1+1", "\\t=1+1"),
        ("two\r\nlines", "two\\r lines"),
        ("\x1b[2J", "\\x1b[2J"),
        ("Zürich", "Zürich"),
        ("a=b", "a=b"),
    ],
)
def test_csv_is_read_as_meant_whatever_places_are_called(fleet: Fleet, location: str, read: str) -> None:
    fleet.locate(fleet.provided_machine(), location)
    output = CommandLine(fleet.settings)("inventory", "-o", "csv").stdout_bytes.decode()
    assert output.count("\r\n") == output.count("\n") == output.count("\r") == 2
    assert output.endswith("\r\n")
    assert rows_of(output)[1] == ["static", read, "1", "1", "0", "0", "0", "0"]


def test_sums_are_exact_beyond_the_databases_own_numbers(fleet: Fleet) -> None:
    """A fleet of a hundred thousand machines has more bytes than 64 bits with a sign count."""
    empty = CommandLine(fleet.settings)
    assert empty.load("inventory") == {"locations": [], "total": dict.fromkeys(NAMES[2:], 0)}
    assert rows_of(empty.read("inventory", "-o", "csv")) == [NAMES]
    for _ in range(3):
        reported(fleet, "x", "static", 1, 1, 1, 2**63 - 1)
    shepherdctl = CommandLine(fleet.settings)
    assert shepherdctl.load("inventory")["total"]["disk_bytes"] == 3 * (2**63 - 1)
    assert rows_of(shepherdctl.read("inventory", "-o", "csv"))[1][-1] == str(3 * (2**63 - 1))
    assert "24 EiB" in shepherdctl.read("inventory")
