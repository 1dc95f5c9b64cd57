import pytest
from shepherd_core.domain.clock import ANSWER_SECONDS, CLOSING_SECONDS, CREATE_SECONDS, MARGIN_SECONDS, RENEWALS
from shepherd_core.domain.pace import Pace
from shepherd_core.domain.remediation import USUAL_TIMEOUTS
from shepherd_core.providers.redfish.adapter import REQUEST_SECONDS
from shepherd_core.settings.functions.loops import ProvisionerSettings
from shepherd_core.settings.functions.specs import FUNCTION_SECONDS, LOOPS
from shepherd_core.wiring import agent_endpoint
from shepherd_core.wiring.adapters import LIMITS, MIGRATION_LIMITS

PACE = Pace()
CLAIM_SECONDS = 30  # for claims, and what comes before them


def test_the_time_for_a_machine_is_enough_for_its_parts() -> None:
    assert PACE.connect_seconds + PACE.answer_seconds < PACE.machine_seconds, "for a slow agent, which would be killed"
    assert PACE.look_seconds <= PACE.machine_seconds / 2, "for the step after a look"
    # A machine that was switched off must be switched on again.
    assert PACE.look_seconds + REQUEST_SECONDS < PACE.machine_seconds, "for a slow BMC after a look"


@pytest.mark.parametrize("loop", ["initializer", "recoverer"])
def test_an_invocation_can_end_the_work_on_a_machine(loop: str) -> None:
    """The runner claims nothing that it cannot end: with too short a timeout nothing would ever be done."""
    assert PACE.machine_seconds + MARGIN_SECONDS + CLOSING_SECONDS + CLAIM_SECONDS <= FUNCTION_SECONDS[loop]


def test_an_invocation_can_list_and_create_its_chunk() -> None:
    """At the usual pace; at a slower one, the next one goes on. All BMCs together have the time of one request."""
    creation = float(ProvisionerSettings.model_fields["creation_seconds"].default)
    assert PACE.chunk * creation + CREATE_SECONDS + CLOSING_SECONDS <= FUNCTION_SECONDS["provisioner"]
    assert min(FUNCTION_SECONDS["provisioner"], FUNCTION_SECONDS["updater"]) > REQUEST_SECONDS + CLOSING_SECONDS


@pytest.mark.parametrize("loop", LOOPS)
def test_a_session_outlives_a_slow_statement_and_no_invocation(loop: str) -> None:
    """It is renewed between statements; the machines of a killed invocation wait for its end."""
    assert LIMITS.statement * RENEWALS / (RENEWALS - 1) <= PACE.session_seconds <= FUNCTION_SECONDS[loop]


def test_a_function_can_tell_that_the_database_is_slow() -> None:
    assert LIMITS.statement + CLOSING_SECONDS <= min(FUNCTION_SECONDS[loop] for loop in LOOPS)
    assert agent_endpoint.LIMITS.connect + agent_endpoint.LIMITS.statement <= FUNCTION_SECONDS["agent_api"]
    assert MIGRATION_LIMITS.statement + ANSWER_SECONDS <= FUNCTION_SECONDS["migrator"]


def test_a_backoff_grows_and_lets_agent_starts_be_tried_twice() -> None:
    """Then the next step is worth its violence."""
    assert PACE.start_backoff_seconds < PACE.start_backoff_maximum_seconds
    assert PACE.step_backoff_seconds < PACE.step_backoff_maximum_seconds
    assert USUAL_TIMEOUTS.boot_wait + PACE.start_backoff_seconds < USUAL_TIMEOUTS.grace
