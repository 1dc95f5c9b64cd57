"""Whether an agent is to blame for machines that do not come back."""

import pytest
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.records import FailedStarts
from shepherd_core.rules.bad_agent import bad_agents


@pytest.mark.parametrize(("machines", "succeeded", "bad"), [(3, False, True), (2, False, False), (9, True, False)])
def test_an_agent_failing_alike_on_three_machines_is_bad(machines: int, succeeded: bool, bad: bool) -> None:
    """One machine less may be chance; and what runs elsewhere is not the agent's fault."""
    starts = FailedStarts("ab12", FailureKind.AGENT_EXITED, machines, succeeded)
    assert bad_agents([starts]) == ([starts] if bad else [])
