from dataclasses import dataclass
from typing import Any

import pytest
from shepherd_core.agent.takeover import STDERR_BYTES, AgentProgram, RunResult, Takeover, printable, take_over
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.machine import (
    AgentExited,
    AgentRefused,
    MalformedAnswer,
    TakeoverFailed,
    WrongInitMessage,
    WrongKeyLength,
)
from shepherd_core.domain.pb.agent_pb2 import TakeoverError as AgentsError
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit, TakeoverResponse, TakeoverSuccess

KEY = bytes(range(32))
ENDPOINT = "https://bmaas.example"
INIT = TakeoverInit(machine_id="7b1d", bmaas_endpoint=ENDPOINT, ca_certificate=b"\x30der")


@dataclass
class Machine:
    answer: bytes = b""
    stderr: bytes = b""
    exit_status: int = 0
    stdin: bytes = b""

    def start(self, _program: AgentProgram, stdin: bytes, _deadline: Deadline) -> RunResult:
        self.stdin = stdin
        return RunResult(self.answer, self.stderr, self.exit_status)


def success(key: bytes = KEY, warnings: tuple[str, ...] = (), **other: Any) -> bytes:
    init = TakeoverInit()
    init.CopyFrom(INIT)
    for name, value in other.items():
        setattr(init, name, value)
    return TakeoverResponse(success=TakeoverSuccess(init_message=init, key=key, warning=warnings)).SerializeToString()


def refusal(message: str) -> bytes:
    return TakeoverResponse(error=AgentsError(message=message)).SerializeToString()


def take(machine: Machine, deadline: Deadline) -> Takeover:
    program: Any = None  # it is only passed on
    return take_over(machine, program, INIT, deadline)  # type: ignore[arg-type]  # all of a connection that is used


def test_agent_is_started_and_recorded(deadline: Deadline) -> None:
    machine = Machine(success(warnings=("no EFI",)), stderr=b"hello\n")
    assert take(machine, deadline) == Takeover(KEY, ("no EFI",), "hello\n")
    assert TakeoverInit.FromString(machine.stdin) == INIT


def test_an_agent_that_said_nothing_is_not_quoted(deadline: Deadline) -> None:
    with pytest.raises(AgentExited, match=r"exited with status 1$"):
        take(Machine(success(), exit_status=1, stderr=b""), deadline)


@pytest.mark.parametrize(
    ("answer", "exit_status", "error", "words"),
    [
        (success(), 1, AgentExited, "exited with status 1: sh: not found"),
        (b"", 127, AgentExited, "exited with status 127: sh: not found"),
        (success(), -1, AgentExited, "without a status, as if killed"),
        (b"", 0, MalformedAnswer, "answered nothing"),
        (b"Segmentation fault", 0, MalformedAnswer, "18 bytes that are not a TakeoverResponse: Segmentation fault"),
        (success()[:-1], 0, MalformedAnswer, "not a TakeoverResponse"),
        (b"\x1a\x01x", 0, MalformedAnswer, "not a TakeoverResponse"),
        (refusal("no disk"), 0, AgentRefused, "the agent reports: no disk"),
        (refusal("no disk"), 1, AgentRefused, "the agent reports: no disk"),
        (refusal(""), 0, AgentRefused, "an error without text"),
        (success(key=KEY[1:]), 0, WrongKeyLength, "31 bytes long instead of 32"),
        (success(key=KEY + b"x"), 0, WrongKeyLength, "33 bytes long instead of 32"),
        (success(key=b""), 0, WrongKeyLength, "0 bytes long instead of 32"),
        (success(machine_id=""), 0, WrongInitMessage, "machine '' instead of '7b1d'"),
        (success(machine_id="other"), 0, WrongInitMessage, "machine 'other' instead of '7b1d'"),
        (
            success(bmaas_endpoint="https://evil"),
            0,
            WrongInitMessage,
            f"endpoint 'https://evil' instead of '{ENDPOINT}'",
        ),
        (success(ca_certificate=b"\x30other"), 0, WrongInitMessage, "the agent answered for another certificate"),
    ],
)
def test_every_other_answer_fails_the_takeover(
    deadline: Deadline, *, answer: bytes, exit_status: int, error: type[TakeoverFailed], words: str
) -> None:
    """The history must say which condition was not met, and the agent's last words: most often they are the reason."""
    with pytest.raises(error, match=words) as caught:
        take(Machine(answer, b"sh:\tnot found\n", exit_status), deadline)
    assert caught.value.__notes__ == ["standard error of the agent: sh: not found"]


def test_text_of_machines_cannot_flood_or_forge_the_history(deadline: Deadline) -> None:
    """Messages are stored and shown in terminals; a machine may be in other hands."""
    evil = "\x1b[2J\u202eline\nline\x00" + "long " * 10_000
    for machine in (
        Machine(refusal(evil)),
        Machine(success(machine_id=evil, bmaas_endpoint=evil)),
        Machine(exit_status=1, stderr=evil.encode()),
    ):
        with pytest.raises(TakeoverFailed) as caught:
            take(machine, deadline)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1_000
        assert all(len(note) < STDERR_BYTES + 100 for note in getattr(caught.value, "__notes__", ()))
    machine = Machine(success(warnings=("\x1bwarning " * 1_000,) * 1_000), stderr=b"caf\xe9" + b"e" * 4095)
    takeover = take(machine, deadline)
    assert len(takeover.warnings) <= 20
    assert all(len(warning) <= 300 and warning.isprintable() for warning in takeover.warnings)
    assert takeover.stderr == "\N{REPLACEMENT CHARACTER}" + "e" * 4095


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\t\x07", "two lines"),
        ("", ""),
        ("0123456789a", "0123456..."),
        ("\u00e9", "\u00e9"),
    ],
)
def test_printable_text_is_one_bounded_line(text: str, shown: str) -> None:
    assert printable(text, 10) == shown
