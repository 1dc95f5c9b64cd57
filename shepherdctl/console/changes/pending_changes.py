"""
Changes in the console, from the form and its dry run to the confirmation and the outcome.

Only with ``--allow-changes``. Between the dry run and the confirmation, a change
is kept here, in memory; the browser has only its name. So a browser cannot alter
what was shown, and a confirmation that is sent twice is carried out once.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import CommitUnknown

from shepherdctl.console.changes.kinds import Kind, kind_of
from shepherdctl.console.changes.plans import Asked, ChangePlan, Shown
from shepherdctl.console.forms import FormInvalid
from shepherdctl.output.printing import note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shepherd_core.settings.functions.bmdb import BmdbSettings

_KEPT = 100
_SECONDS = 900
"""After which a dry run is too old to be confirmed."""


class ChangeUnknown(ShepherdError):
    """There is no such change."""


class Busy(ShepherdError):
    """Another comparison or repair is under way; nothing was changed."""


class ComparisonLock:
    """A lock for comparisons and repairs, which ask the provider: one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """
        Hold the lock during the block.

        Raises:
            Busy: it is held already.
        """
        if not self._lock.acquire(blocking=False):
            raise Busy
        try:
            yield
        finally:
            self._lock.release()


@dataclass(slots=True)
class Change:
    """One change, from its dry run on."""

    kind: Kind
    plan: ChangePlan
    subject: str
    """The machine, pause or provider id; "": none."""
    shown: Shown
    """The outcome of the dry run."""
    name: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    began: float = field(default_factory=time.monotonic)
    confirmed: bool = False
    done: Shown | None = None
    failed: str | None = None
    """Why it was not done, or not completely."""

    @property
    def under_way(self) -> bool:
        """Whether it is being carried out."""
        return self.confirmed and self.done is None and self.failed is None


class PendingChanges:
    """The changes that one operator makes."""

    def __init__(self, operator: str, settings: BmdbSettings, comparison_lock: ComparisonLock) -> None:
        """Make them as *operator*, in the BMDB of *settings*."""
        self.operator = operator
        self._settings = settings
        self._comparison_lock = comparison_lock
        self._lock = threading.Lock()
        self._changes: OrderedDict[str, Change] = OrderedDict()

    def plan(self, form: Mapping[str, str]) -> Change:
        """
        Return the change that *form* asks for, with its dry run.

        Raises:
            FormInvalid: the form is wrong.
            ShepherdError: the dry run failed.
        """
        kind = kind_of(form)
        plan = kind.plan(Asked(form, self.operator, self._settings))
        change = Change(kind, plan, form.get(kind.subject, ""), self._run(plan, dry_run=True))
        with self._lock:
            self._changes[change.name] = change
            while len(self._changes) > _KEPT:
                self._changes.popitem(last=False)
        return change

    def find(self, name: str) -> Change:
        """
        Return a change.

        Raises:
            ChangeUnknown: there is none of this name, or too many came after it.
        """
        with self._lock:
            found = self._changes.get(name)
        if found is None:
            message = "it was begun too long ago, or before the console was started again"
            raise ChangeUnknown(message)
        return found

    def confirm(self, change: Change, typed: str) -> None:
        """
        Carry out *change* if it would still do what was shown. One that was confirmed before is left as it is.

        Raises:
            FormInvalid: *typed* is not what must be typed; the change can still be confirmed.
        """
        with self._lock:
            if change.confirmed or not change.shown.possible:
                return
            if change.shown.typed is not None and typed.strip() != change.shown.typed:
                message = f"type {change.shown.typed} to continue; nothing was changed"
                raise FormInvalid(message)
            change.confirmed = True
        try:
            change.done, change.failed = self._carried_out(change)
        except CommitUnknown as error:
            change.failed = f"{error}. It may have been done: check before you repeat it."
        except ShepherdError as error:
            change.failed = f"{error}{'. The failure may be temporary.' if error.retryable else ''}"
        except Exception:
            change.failed = "It failed unexpectedly: check what it did before you repeat it."
            raise
        finally:
            note(f"{self.operator}: {change.plan.command}: {change.failed or 'done'}")

    def _carried_out(self, change: Change) -> tuple[Shown | None, str | None]:
        """Return the outcome, or why nothing was done."""
        if time.monotonic() > change.began + _SECONDS:
            return None, f"The dry run is more than {_SECONDS // 60} minutes old. Nothing was changed. Begin again."
        if not change.plan.two_phase and change.plan.run(True).rows != change.shown.rows:
            return None, "It would now do something else than the dry run showed. Nothing was changed. Begin again."
        return self._run(change.plan, dry_run=False), None

    def _run(self, plan: ChangePlan, *, dry_run: bool) -> Shown:
        if not plan.two_phase:
            return plan.run(dry_run)
        with self._comparison_lock():
            return plan.run(dry_run)
