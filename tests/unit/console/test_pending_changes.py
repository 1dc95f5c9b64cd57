"""A change in the console is carried out once, and only while it would do what was shown."""

import threading
import time
from collections.abc import Callable

import pytest
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import CommitUnknown
from shepherd_core.settings.functions.bmdb import BmdbSettings

from shepherdctl.console.changes.kinds import KINDS
from shepherdctl.console.changes.pending_changes import Busy, Change, ComparisonLock, PendingChanges
from shepherdctl.console.changes.plans import ChangePlan, Shown
from shepherdctl.console.forms import FormInvalid

SHOWN = Shown(("What",), [("one",)], typed="one")


@pytest.fixture
def pending() -> PendingChanges:
    """Return the changes of an operator."""
    return PendingChanges("ana", BmdbSettings(bmdb_host="/nowhere"), ComparisonLock())


class Ran:
    """A change that counts how often it was carried out."""

    def __init__(self, act: Callable[[], None] = lambda: None, now: Shown = SHOWN) -> None:
        self.times = 0
        self._act = act
        self._now = now

    def __call__(self, dry_run: bool) -> Shown:
        """Carry it out, or show what it would do now."""
        if not dry_run:
            self.times += 1
            self._act()
        return self._now


def change(run: Ran, *, two_phase: bool = False, began: float | None = None) -> Change:
    """Return a change that was shown, by default just now."""
    plan = ChangePlan("shepherdctl …", run, two_phase)
    return Change(KINDS["retry"], plan, "", SHOWN, began=time.monotonic() if began is None else began)


def fail(error: Exception) -> Callable[[], None]:
    """Return a function that fails with *error*."""

    def act() -> None:
        raise error

    return act


def test_a_change_that_is_sent_twice_at_once_is_carried_out_once(pending: PendingChanges) -> None:
    """An operator clicks twice, or loads the page again: the second finds the first under way."""
    began, ends = threading.Event(), threading.Event()

    def act() -> None:
        began.set()
        ends.wait(60)

    ran = Ran(act)
    sent = change(ran)
    first = threading.Thread(target=pending.confirm, args=(sent, "one"))
    first.start()
    assert began.wait(60)
    pending.confirm(sent, "one")
    assert sent.under_way
    ends.set()
    first.join(60)
    pending.confirm(sent, "one")
    assert (sent.done, sent.failed, ran.times) == (SHOWN, None, 1)


def test_a_change_waits_for_the_name_that_must_be_typed(pending: PendingChanges) -> None:
    """As the command does; a mistake can be corrected."""
    ran = Ran()
    sent = change(ran)
    for typed in ("", "One", "one two"):
        with pytest.raises(FormInvalid, match="type one to continue; nothing was changed"):
            pending.confirm(sent, typed)
    assert ran.times == 0
    pending.confirm(sent, " one ")
    assert ran.times == 1


@pytest.mark.parametrize(
    ("run", "began", "said"),
    [
        (Ran(now=Shown(("What",), [("two",)])), None, "It would now do something else"),
        (Ran(now=Shown(("What",), [], possible=False)), None, "It would now do something else"),
        (Ran(), time.monotonic() - 10_000, "more than 15 minutes old"),
    ],
    ids=["something else", "nothing", "too old"],
)
def test_a_dry_run_that_no_longer_holds_is_not_carried_out(
    pending: PendingChanges, run: Ran, began: float | None, said: str
) -> None:
    """A form stays open in a tab, while a colleague or a loop does something."""
    sent = change(run, began=began)
    pending.confirm(sent, "one")
    assert said in str(sent.failed)
    assert "Nothing was changed" in str(sent.failed)
    assert (run.times, sent.done) == (0, None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ShepherdError("it rains"), "it rains"),
        (CommitUnknown("the connection broke"), "It may have been done: check before you repeat it."),
        (ZeroDivisionError(), "It failed unexpectedly: check what it did before you repeat it."),
    ],
    ids=["refused", "unknown", "defect"],
)
def test_a_change_that_failed_is_not_repeated(pending: PendingChanges, error: Exception, said: str) -> None:
    """It is unknown how far it came: the operator decides."""
    ran = Ran(fail(error))
    sent = change(ran)
    if isinstance(error, ShepherdError):
        pending.confirm(sent, "one")
    else:
        with pytest.raises(type(error)):
            pending.confirm(sent, "one")
    pending.confirm(sent, "one")
    assert said in str(sent.failed)
    assert (ran.times, sent.done) == (1, None)


def test_one_change_at_a_time_asks_the_provider() -> None:
    """Each holds the provider's lock for minutes."""
    comparison_lock = ComparisonLock()
    ran = Ran()
    sent = change(ran, two_phase=True)
    with comparison_lock():
        PendingChanges("ana", BmdbSettings(bmdb_host="/nowhere"), comparison_lock).confirm(sent, "one")
        with pytest.raises(Busy), comparison_lock():
            pass
    assert "Another comparison or repair is under way; nothing was changed" in str(sent.failed)
    assert ran.times == 0
