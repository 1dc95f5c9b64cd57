"""The command that makes a machine list from CSV."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tests.support.command_line import CommandLine

BMC = {"Bmc": "https://10.0.1.7", "Credential": "/shepherd/bmc/rack1"}


def imported(folder: Path, content: str | bytes, provider: str = "static") -> Result:
    file = folder / "machines.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return CommandLine(None)("settings", "import-machines", str(file), "--provider", provider)


@pytest.mark.parametrize(
    ("content", "provider", "entries"),
    [
        (
            "ID,Addr,Location,Labels\r\nr1,203.0.113.7,Rack 1,role=db gpu\r\n\r\nr2, 2001:db8::8 ,,\r\n",
            "static",
            [
                {"ID": "r1", "Addr": "203.0.113.7", "Location": "Rack 1", "Labels": "role=db gpu"},
                {"ID": "r2", "Addr": "2001:db8::8"},
            ],
        ),
        (
            '\ufeffbmc;credential;addr;id\nhttps://10.0.1.7;/shepherd/bmc/rack1;203.0.113.7;"r;ü"\n',
            "redfish",
            [{**BMC, "Addr": "203.0.113.7", "ID": "r;ü"}],
        ),
    ],
)
def test_spreadsheets_become_lists(tmp_path: Path, content: str, provider: str, entries: list[dict[str, str]]) -> None:
    result = imported(tmp_path, content, provider)
    assert json.loads(result.stdout) == entries
    assert result.stderr == f"{len(entries)} machine{'s' * (len(entries) > 1)} for {provider}_list\n"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("ID,Addr\nr1,203.0.113\n", "line 2: Addr is '203.0.113'; it must be the IP address"),
        ("ID,Addr\nr1,203.0.113.7\n\nr1,203.0.113.8\n", "line 4: ID 'r1' is that of line 2 too; it must be unique"),
        ("ID,Addr\n,203.0.113.7\n", "line 2: ID is missing; it must be a text of 1 to 128"),
        ("ID,Addr\nr1,203.0.113.7,x\n", "line 2: there are 3 cells; it must have 2"),
        ("ID,Addr,Owner\n", "line 1: column 3 is 'Owner'; it must be one of ID, Addr, Location, HostKey"),
        ("ID,Addr,id\n", "line 1: column 3 is 'ID'; it must be one of"),
        ("", "line 1: there is no column ID; it is required"),
        ("ID,Addr\n,\n", "there is no machine below line 1"),
        ('ID,Addr\n"r1"x,203.0.113.7\n', "line 2 is not CSV: "),
        (b"ID,Addr\n\xff,203.0.113.7\n", "is not UTF-8 in line 2: save it as CSV UTF-8"),
        (b"ID,Addr\nr\x1b[31m,203.0.113.7\n", "line 2: ID is 'r\\x1b[31m'; it must be"),
    ],
)
def test_a_fault_is_named_with_line_column_and_value(tmp_path: Path, content: str | bytes, fault: str) -> None:
    """It is corrected in the spreadsheet, which has lines and columns; half a list would set machines aside."""
    result = imported(tmp_path, content)
    assert (result.exit_code, result.stdout) == (1, "")
    assert fault in result.stderr


def test_of_very_many_faults_the_first_are_named(tmp_path: Path) -> None:
    result = imported(tmp_path, "ID,Addr\n" + "r,x\n" * 5000)
    assert "line 2: Addr" in result.stderr
    assert len(result.stderr.splitlines()) < 200
