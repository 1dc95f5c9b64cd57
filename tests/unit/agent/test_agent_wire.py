import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit, TakeoverResponse

from agent.shepherd_agent import messages
from agent.shepherd_agent.refusal import AgentRefusal

_TEXT = st.text(min_size=1, max_size=300)
_KEYS = st.lists(st.binary(min_size=32, max_size=32), max_size=3)


@given(_TEXT, _TEXT, st.binary(max_size=500), _KEYS, st.integers(1, 2**63 - 1))
def test_the_agent_reads_what_the_initializer_writes(
    machine_id: str, endpoint: str, certificate: bytes, keys: list[bytes], time: int
) -> None:
    sent = TakeoverInit(
        machine_id=machine_id, bmaas_endpoint=endpoint, ca_certificate=certificate, installation_key=keys, time=time
    ).SerializeToString()
    read = messages.TakeoverInit(machine_id, endpoint, certificate, sent, tuple(keys), time)
    assert messages.TakeoverInit.decode(sent) == read


def test_fields_of_later_versions_are_passed_over_and_sent_back() -> None:
    """An Initializer may be newer than the agent that it starts, and compares the whole message."""
    known = TakeoverInit(machine_id="m", bmaas_endpoint="e").SerializeToString()
    unknown = (
        b"\x20\x96\x01"  # 4: varint
        b"\x29\x01\x02\x03\x04\x05\x06\x07\x08"  # 5: 64 bits
        b"\x32\x02hi"  # 6: bytes
        b"\x3d\x01\x02\x03\x04"  # 7: 32 bits
        b"\x82\x7d\x01x"  # 2000: bytes
    )
    init = messages.TakeoverInit.decode(unknown + known + unknown)
    assert (init.machine_id, init.bmaas_endpoint) == ("m", "e")
    answer = TakeoverResponse.FromString(messages.takeover_success(init, b"k", ()))
    sent, returned = TakeoverInit.FromString(unknown + known + unknown), answer.success.init_message
    assert returned.SerializeToString(deterministic=True) == sent.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "no machine_id"),
        (b"\x08\x07", "no machine_id"),  # a number where text belongs
        (TakeoverInit(machine_id="m").SerializeToString(), "no bmaas_endpoint"),
        (TakeoverInit(bmaas_endpoint="e").SerializeToString(), "no machine_id"),
        (TakeoverInit(machine_id="m", bmaas_endpoint="e", installation_key=[b"k" * 32]).SerializeToString(), "no time"),
        (
            TakeoverInit(machine_id="m", bmaas_endpoint="e", installation_key=[b"k" * 31], time=1).SerializeToString(),
            "not 32 bytes long",
        ),
        (b"\x0a\x02\xff\xfe", "not a TakeoverInit"),
        (b"\x0a", "middle of a field"),
        (b"\x0a\x05abc", "middle of a field"),
        (b"\x29\x01", "middle of a field"),
        (b"\x02\x00", "number 0"),
        (b"\x0b", "wire type 3"),
        (b"\xff" * 12, "longer than 10 bytes"),
    ],
)
def test_a_message_that_is_no_takeover_is_refused(message: bytes, reason: str) -> None:
    """It may be cut off when the SSH connection breaks."""
    with pytest.raises(AgentRefusal, match=reason):
        messages.TakeoverInit.decode(message)


@given(st.binary(max_size=200))
def test_no_input_makes_the_agent_crash(message: bytes) -> None:
    with contextlib.suppress(AgentRefusal):
        messages.TakeoverInit.decode(message)
