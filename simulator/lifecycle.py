"""The base classes of what is opened, used and closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Self


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
            self._stack.close()
            raise
        return self

    def close(self) -> None:
        """Close all parts."""
        self._stack.close()

    @abstractmethod
    def _make(self) -> None:
        """Open the parts and enter them on the stack."""
