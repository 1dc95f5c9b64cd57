"""One login for all requests to an API."""

from collections.abc import Iterator

import pytest
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors.provider import ProviderUnavailable
from shepherd_core.providers.kit.auth import Login
from shepherd_core.providers.kit.logins import Logins


class Scripted:
    def __init__(self, *answers: Login | Exception) -> None:
        self._answers: Iterator[Login | Exception] = iter(answers)

    def login(self, url: str, deadline: Deadline) -> Login:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_one_login_follows_a_former_one_whoever_asks(deadline: Deadline) -> None:
    """Two threads may have used the former one, and the first of them got no new one."""
    former, new = Login({}, ("a",)), Login({}, ("b",))
    logins = Logins("https://api", Scripted(former, ProviderUnavailable("503"), new), SystemClock(), 1)
    assert logins.usable(deadline) is former
    with pytest.raises(ProviderUnavailable):
        logins.after(former, deadline)
    assert logins.after(former, deadline) is new
    assert logins.after(former, deadline) is new
