"""
The settings document of this process, and the settings that functions get from it and from their environment.

``SHEPHERD_SETTINGS`` names the document; without it there is none, and nothing
here does any work. A warm function asks for it again at its first invocation
after ``RELOAD_SECONDS``. A document that cannot be read, or has a fault, leaves
the last good one in force; a function that has none yet fails.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from shepherd_core import telemetry
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors import ConfigError, ShepherdError
from shepherd_core.settings import sources
from shepherd_core.settings.base import PREFIX, Settings
from shepherd_core.wiring.version import code_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.domain.clock import Clock
    from shepherd_core.settings.document import Document


class _Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)
S = TypeVar("S", bound=Settings)

RELOAD_SECONDS = 60.0
"""How long a document stays in force before it is read again."""


class DocumentInForce:
    """Keeps the last good document of a source. Safe to use from any thread."""

    def __init__(self, source: str, read: Callable[[str], bytes], clock: Clock) -> None:
        self._source = source
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._document: Document | None = None
        self._next = 0.0
        self.refused = False
        """The document that was read last is not the one in force."""

    def document(self) -> Document:
        """
        Return the document in force, which ``refresh`` has read.

        Raises:
            ConfigError, SourceError: as ``refresh``.
        """
        return self._document or self.refresh()

    def refresh(self) -> Document:
        """
        Return the document in force, after reading it again if it is older than ``RELOAD_SECONDS``.

        Raises:
            ConfigError: there was none yet, and it is wrong; lists every fault.
            SourceError: there was none yet, and it cannot be read.
        """
        with self._lock:
            if self._document is None or self._clock.monotonic() >= self._next:
                self._next = self._clock.monotonic() + RELOAD_SECONDS
                self._reload()
            assert self._document is not None  # else _reload had raised
            return self._document

    def refuse(self, error: ShepherdError, last_good: Document | None) -> None:
        """Record that the document could not be put in force, and that *last_good* stays so."""
        self._document = last_good
        self.refused = True
        telemetry.error(
            "settings document refused: the last good one stays in force",
            source=self._source,
            faults=error.faults if isinstance(error, ConfigError) else [str(error)],
        )

    def _reload(self) -> None:
        try:
            document = read(self._source, self._read, self._document)
        except ShepherdError as error:
            if self._document is None:
                raise
            self.refuse(error, self._document)
            return
        self.refused = False
        if self._document is not None and document is not self._document:
            telemetry.info(
                "settings document changed", source=self._source, before=self._document.hash, now=document.hash
            )
        self._document = document


def read(source: str, fetch: Callable[[str], bytes], known: Document | None = None) -> Document:
    """
    Return the document at *source*, checked as a whole; *known* if it has not changed.

    Raises:
        ConfigError: it is wrong; lists every fault.
        SourceError: it cannot be read.
    """
    from shepherd_core.settings.document import bounded, digest, parse  # noqa: PLC0415 - only where there is one
    from shepherd_core.settings.effective import effective  # noqa: PLC0415

    content = fetch(source)
    if known is not None and digest(content) == known.hash:
        return known
    document, faults = parse(content)
    faults += effective(document).faults
    if faults:
        raise ConfigError(bounded(faults))
    return document


def fetch(source: str) -> bytes:
    """Return the text of the document at *source*, as ``adapters.documents.read``."""
    from shepherd_core.adapters import documents  # noqa: PLC0415 - only where there is one
    from shepherd_core.settings.document import LIMIT_BYTES  # noqa: PLC0415

    return documents.read(source, LIMIT_BYTES, bucket_owner())


def bucket_owner() -> str | None:
    """Return the account that the bucket must belong to, as the deployment says. The document cannot say it."""
    return sources.variables(PREFIX).get("bucket_owner")


@cache
def in_force() -> DocumentInForce | None:
    """Return the keeper of this process's document; None: the environment names none."""
    source = sources.variables(PREFIX).get("settings")
    return None if source is None else DocumentInForce(source, fetch, SystemClock())


def load(*settings_types: type[S]) -> list[S]:
    """
    Return one object for each of *settings_types*, from the environment and the document in force.

    Raises:
        ConfigError: settings are missing or wrong; lists every fault of all types.
        SourceError: the document cannot be read.
    """
    document = in_force()
    return sources.load(*settings_types, document=None if document is None else document.document())


def check() -> None:
    """
    Check the settings of all functions, as far as the environment and the document have them.

    Raises:
        ConfigError: they are wrong; lists every fault.
        SourceError: the document cannot be read.
    """
    from shepherd_core.settings.document import bounded  # noqa: PLC0415 - only the Migrator needs it
    from shepherd_core.settings.effective import effective  # noqa: PLC0415

    source = sources.variables(PREFIX).get("settings")
    if source is not None:
        read(source, fetch)
    elif faults := effective(None).faults:
        raise ConfigError(bounded(faults))


def log_keys() -> dict[str, object]:
    """Return what each log line says about code and settings: their version, and the hash of the document in force."""
    document = in_force()
    code: dict[str, object] = {"code": code_version()}
    if document is None:
        return code
    refused = {"settings_refused": True} if document.refused else {}
    return {**code, "settings": document.document().hash, **refused}


def counts() -> dict[telemetry.Metric, float]:
    """Return the metric that an alarm reads: 1 while a document is refused, else nothing."""
    document = in_force()
    return {telemetry.Metric.SETTINGS_REFUSED: 1} if document is not None and document.refused else {}


class PerDocument(Generic[T]):
    """
    Builds an object once for each document in force, and closes the one before. Safe to use from any thread.

    If nothing can be built with a document, the last one stays in force.
    """

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self._lock = threading.Lock()
        self._built: tuple[Document | None, T] | None = None

    def __call__(self) -> T:
        """
        Return the object; the same one as long as the same document is in force.

        Raises:
            ConfigError: the settings are wrong, and there is no object yet.
            SourceError: the document cannot be read, and there is no object yet.
        """
        source = in_force()
        with self._lock:
            document = None if source is None else source.refresh()
            if self._built is not None and self._built[0] is document:
                return self._built[1]
            try:
                built = self._build()
            except ConfigError as error:
                if self._built is None or source is None:
                    raise
                source.refuse(error, self._built[0])
                return self._built[1]
            if self._built is not None:
                self._built[1].close()
            self._built = document, built
            return built

    def cache_clear(self) -> None:
        """Forget the object without closing it."""
        self._built = None


def per_document(build: Callable[[], T]) -> PerDocument[T]:
    """Return *build*, called once for each document in force."""
    return PerDocument(build)
