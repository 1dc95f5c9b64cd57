"""Base classes of things that are opened, used and closed."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Self, TypeVar

from shepherdctl.interrupts import deferred

T = TypeVar("T")


class Closeable(ABC):
    """A context manager that is closed on exit."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Stop, and return when everything has stopped."""


class Assembled(Closeable):
    """Parts that are opened on entry and closed in reverse order, also when one of them cannot be opened."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close all parts."""
        with deferred():
            self._stack.close()

    def _enter(self, make: Callable[[], AbstractContextManager[T]]) -> T:
        """Make a part, enter it on the stack, and return it; signals are deferred meanwhile."""
        with deferred():
            return self._stack.enter_context(make())

    @abstractmethod
    def _make(self) -> None:
        """Open the parts and enter them on the stack."""
