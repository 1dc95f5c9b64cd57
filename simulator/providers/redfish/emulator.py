"""
The Redfish emulator of sushy-tools with its fake driver: systems that are only on or off.

It runs in this process, for one rack at a time, because its state is global.
Three things are changed from outside. Its driver chooses at random how long a
change of power takes, 1 to 11 s, without a setting for it: we replace its
random module. A change that is due is made only when the system is read: so we
read it. And each access to its state opens an SQLite file, which takes longer
than the rest of a request: we keep the state in memory.
"""

import copy
import logging
import threading
import time
import warnings
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from simulator.closeable import Closeable
from simulator.providers.kit.http_server import HttpRequest, Reply, Server

IMAGE = b"an image to install from\n"

_one_at_a_time = threading.Lock()


class RedfishEmulator(Closeable):
    """
    The emulator, which answers from entry to exit, one request at a time.

    *changed* is called on every change of a system, on another thread, while the emulator waits; it gets the driver's
    message, which has name, uuid, power_state, pending_power and boot_device.
    """

    def __init__(
        self,
        systems: Sequence[Mapping[str, object]],
        changed: Callable[[Mapping[str, Any]], None],
        action_seconds: float,
    ) -> None:
        """*systems* as in ``SUSHY_EMULATOR_FAKE_SYSTEMS``."""
        self._systems = systems
        self._changed = changed
        self._seconds = action_seconds
        self._due: dict[str, float] = {}
        self._something_due = threading.Condition()
        self._closing = False
        self._one_request = threading.Lock()
        self.errors: list[Exception] = []
        """Exceptions that *changed* raised."""

    def __enter__(self) -> Self:
        if not _one_at_a_time.acquire(blocking=False):
            raise RuntimeError("the emulator runs for another rack already")
        self._webhook = Server(self._notified, "127.0.0.1")
        self._webhook.start()
        self._client = self._make_client()
        self._reader = threading.Thread(target=self._read_due, daemon=True)
        self._reader.start()
        return self

    def close(self) -> None:
        """Stop the emulator."""
        with self._something_due:
            self._closing = True
            self._something_due.notify_all()
        self._reader.join()
        self._webhook.close()
        self._driver.random = self._random
        _one_at_a_time.release()

    @property
    def image_url(self) -> str:
        """Return the URL of an image for a virtual drive."""
        return f"{self._webhook.url}/image.iso"

    @property
    def idle(self) -> bool:
        """Return whether no change of power is under way."""
        with self._something_due:
            return not self._due

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Send a request to the emulator and return status and body of the answer."""
        with self._one_request:
            answer = self._client.open(path, method=method, json=body)
            return answer.status_code, answer.data

    def _make_client(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of cgi, which one of its libraries imports
            from sushy_tools.emulator import memoize  # noqa: PLC0415 - takes half a second
            from sushy_tools.emulator.main import app  # noqa: PLC0415
            from sushy_tools.emulator.resources.systems import fakedriver  # noqa: PLC0415
        from werkzeug.test import Client  # noqa: PLC0415

        app.logger.setLevel(logging.CRITICAL)  # it logs every refused request
        app.__dict__.pop("_cache", None)  # the drivers of the previous rack
        app.config.update(
            SUSHY_EMULATOR_FAKE_DRIVER=True,
            SUSHY_EMULATOR_FAKE_SYSTEMS=[{**system, "external_notifier": True} for system in self._systems],
            EXTERNAL_NOTIFICATION_URL=f"{self._webhook.url}/",
        )
        memoize.PersistentDict = _InMemory
        self._driver = fakedriver
        self._random = fakedriver.random
        fakedriver.random = _FixedDelay(self._seconds)
        return Client(app)

    def _notified(self, request: HttpRequest) -> Reply:
        """Serve the image, and the notifications of the driver."""
        if request.method == "GET":
            return Reply(status=200, body=IMAGE)
        system = request.body
        try:
            self._changed(system)
        except Exception as error:  # noqa: BLE001 - kept in ``errors``, which the environment checks at the end
            self.errors.append(error)
        pending = system.get("pending_power")
        with self._something_due:
            if pending:
                self._due[system["uuid"]] = pending["apply_time"]
            else:
                self._due.pop(system["uuid"], None)
            self._something_due.notify_all()
        return Reply(status=200)

    def _read_due(self) -> None:
        """Read each system when a change is due there."""
        while True:
            with self._something_due:
                if self._closing:
                    return
                uuid, at = min(self._due.items(), key=lambda item: item[1], default=(None, 0.0))
                wait = at - time.time()
                if uuid is None or wait > 0:
                    self._something_due.wait(None if uuid is None else wait)
                    continue
            self.ask("GET", f"/redfish/v1/Systems/{uuid}")


class _InMemory(UserDict[Any, Any]):
    """Replaces the dictionaries in files; what is read is a copy there, too."""

    def make_permanent(self, *_: object) -> None:
        """Stay in memory."""

    def __getitem__(self, key: object) -> Any:
        return copy.deepcopy(super().__getitem__(key))


class _FixedDelay:
    """Replaces the module random in the driver."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def randint(self, low: int, high: int) -> float:  # noqa: ARG002 - named by random
        """Return the delay, plus the fraction of the current second, because the driver adds it to whole seconds."""
        return time.time() % 1 + self._seconds
