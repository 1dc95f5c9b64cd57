"""When the agent reports."""

from __future__ import annotations

import itertools

import pytest
from shepherd_core.settings.functions import RecovererSettings

from agent.shepherd_agent.heartbeat import INTERVAL_VARIABLE, interval, pause_after
from agent.shepherd_agent.refusal import Refusal


@pytest.mark.parametrize(
    ("environment", "seconds"), [({}, 60.0), ({INTERVAL_VARIABLE: ""}, 60.0), ({INTERVAL_VARIABLE: "0.5"}, 0.5)]
)
def test_the_interval_is_a_minute_unless_it_is_set(environment: dict[str, str], seconds: float) -> None:
    """A demonstration cannot wait a minute."""
    assert interval(environment) == seconds


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "often", "1e999"])
def test_an_interval_that_makes_no_sense_is_refused(text: str) -> None:
    """The error names the variable, the value and the requirement."""
    with pytest.raises(Refusal, match=rf"{INTERVAL_VARIABLE} is '{text}'; set it to a positive number"):
        interval({INTERVAL_VARIABLE: text})


def test_pauses_grow_with_every_failure_up_to_a_limit() -> None:
    """An endpoint that is in trouble is left alone, but the agent never gives up."""
    pauses = list(
        itertools.accumulate(range(2000), lambda pause, _: pause_after(pause, 60.0, delivered=False), initial=60.0)
    )
    assert pauses[:6] == [60, 90, 135, 202.5, 300, 300]
    assert pauses[-1] == 300


def test_a_delivery_ends_the_growth() -> None:
    """The next heartbeat is due in the usual time."""
    assert pause_after(300.0, 60.0, delivered=True) == 60


def test_after_an_outage_the_agent_reports_within_the_heartbeat_timeout() -> None:
    """Else an outage of the endpoint would end with a reboot of the fleet."""
    longest = pause_after(1e9, interval({}), delivered=False)
    assert longest * 1.5 < RecovererSettings.model_fields["heartbeat_timeout_seconds"].default
