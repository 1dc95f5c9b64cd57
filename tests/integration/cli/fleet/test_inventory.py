import csv
import io

from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine

TIB = 1 << 40
NAMES = ["provider", "location", "machines", "unreported", "hardware_threads", "memory_bytes", "disks", "disk_bytes"]


def reported(fleet: Fleet, location: str | None, provider: str, *sums: int) -> None:
    """Plant a machine whose report adds up to threads, bytes of memory, disks, and bytes on them."""
    machine_id = fleet.locate(fleet.provided_machine(provider), location)
    summed = dict(zip(NAMES[4:], sums, strict=True))
    fleet.plant("machine_hardware_report", machine_id=machine_id, hardware_report_raw=b"", **summed)


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def test_people_get_rounded_sums_and_programs_exact_ones(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """A fleet of a hundred thousand machines has more bytes than 64 bits with a sign count."""
    assert shepherdctl.load("inventory") == {"locations": [], "total": dict.fromkeys(NAMES[2:], 0)}
    assert rows_of(shepherdctl.read("inventory", "-o", "csv")) == [NAMES]
    reported(fleet, "Amsterdam", "equinix", 64, TIB, 2, 7 * TIB // 2)
    reported(fleet, "Amsterdam", "equinix", 32, TIB // 2, 1, 960197124096)
    for location in ("Amsterdam", "Paris"):
        fleet.locate(fleet.provided_machine("equinix"), location)
    for _ in range(3):
        reported(fleet, None, "static", 8, 1, 0, 2**63 - 1)
    fleet.bare_machine()
    exact: list[list[str | int | None]] = [
        ["equinix", "Amsterdam", 3, 1, 96, 3 * TIB // 2, 3, 7 * TIB // 2 + 960197124096],
        ["equinix", "Paris", 1, 1, 0, 0, 0, 0],
        ["static", None, 3, 0, 24, 3, 0, 3 * (2**63 - 1)],
    ]
    total = [7, 2, 120, 3 * TIB // 2 + 3, 3, 7 * TIB // 2 + 960197124096 + 3 * (2**63 - 1)]
    result = shepherdctl("inventory")
    assert "equinix   Amsterdam         3          1       96  1.5 TiB      3   4.4 TiB" in result.stdout.splitlines()
    assert "24 EiB" in result.stdout
    assert result.stderr == "2 machines sent no hardware report: their hardware is not counted\n"
    assert shepherdctl.load("inventory") == {
        "locations": [dict(zip(NAMES, row, strict=True)) for row in exact],
        "total": dict(zip(NAMES[2:], total, strict=True)),
    }
    listed = shepherdctl("inventory", "-o", "csv")
    rows = [[str("" if value is None else value) for value in row] for row in exact]
    assert (rows_of(listed.stdout_bytes.decode()), listed.stderr) == ([NAMES, *rows], "")
    for words, machines in {
        "--provider equinix": 4,
        "--location Amsterdam": 3,
        "--provider equinix --location Paris": 1,
        "--provider static --location Paris": 0,
        "--location amsterdam": 0,
    }.items():
        assert shepherdctl.load("inventory", *words.split())["total"]["machines"] == machines, words
    assert len(shepherdctl.read("inventory", "--location", "Amsterdam").splitlines()) == 1 + 1, "one row has no total"


READ = {'Paris, "4"': 'Paris, "4"', "=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@sum": "'@sum", " =1+2": "'=1+2"}
READ |= {"\t=1+3": "\\t=1+3", "two\r\nlines": "two\\r lines", "\x1b[2J": "\\x1b[2J", "Zürich": "Zürich", "a=b": "a=b"}


def test_csv_is_read_as_meant_whatever_places_are_called(fleet: Fleet, shepherdctl: CommandLine) -> None:
    for location in READ:
        fleet.locate(fleet.provided_machine(), location)
    output = shepherdctl("inventory", "-o", "csv").stdout_bytes.decode()
    assert output.count("\r\n") == output.count("\n") == output.count("\r") == 1 + len(READ)
    assert output.endswith("\r\n")
    rows = [["static", read, "1", "1", "0", "0", "0", "0"] for read in READ.values()]
    assert sorted(rows_of(output)[1:]) == sorted(rows)
