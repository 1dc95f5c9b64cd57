"""
sushy-tools' emulator of Redfish, as its package has it, with its fake driver: systems that are only on or off.

It runs in this process, for one rack at a time: it keeps what it knows in its
module. Two things are done to it from outside. Its driver rolls dice for how
long a change of power takes, 1 to 11 s, with no setting for that: the dice are
ours. And it makes a change that is due only when somebody looks: so we look.
"""

from __future__ import annotations

import http.client
import http.server
import json
import logging
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

IMAGE = b"an image to install from\n"

_POLL_SECONDS = 0.02
_one_at_a_time = threading.Lock()


class RedfishEmulator:
    """
    The emulator, serving plain HTTP at a loopback port from ``__enter__`` to ``__exit__``, one request at a time.

    *changed* is told of every change to a system, by a thread of ours, while the emulator waits; it gets what the
    driver sends, which has name, uuid, power_state, pending_power and boot_device.
    """

    def __init__(
        self,
        systems: Sequence[Mapping[str, object]],
        folder: Path,
        changed: Callable[[Mapping[str, Any]], None],
        action_seconds: float,
    ) -> None:
        """*systems* as in ``SUSHY_EMULATOR_FAKE_SYSTEMS``; its databases are kept in *folder*."""
        self._systems = systems
        self._folder = folder
        self._changed = changed
        self._seconds = action_seconds
        self._due: dict[str, float] = {}
        self._something_due = threading.Condition()
        self._closing = False
        self.errors: list[Exception] = []
        """What went wrong in *changed*."""

    def __enter__(self) -> Self:
        if not _one_at_a_time.acquire(blocking=False):
            raise RuntimeError("the emulator runs for another rack already")
        self._webhook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server = self._make_server()
        self._threads = [
            threading.Thread(target=self._webhook.serve_forever, args=(_POLL_SECONDS,), daemon=True),
            threading.Thread(target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True),
            threading.Thread(target=self._look, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._something_due:
            self._closing = True
            self._something_due.notify_all()
        self._threads[-1].join()
        for server in (self._server, self._webhook):
            server.shutdown()
            server.server_close()
        self._driver.random = self._dice
        _one_at_a_time.release()

    @property
    def image_url(self) -> str:
        """Return where the emulator can fetch an image for a virtual drive."""
        return f"http://127.0.0.1:{self._webhook.server_address[1]}/image.iso"

    @property
    def idle(self) -> bool:
        """Return whether no change of power is under way."""
        with self._something_due:
            return not self._due

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Send a request to the emulator and return status and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=30)
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, {} if content is None else {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _make_server(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of cgi, which a library of its imports
            from sushy_tools.emulator.main import app  # noqa: PLC0415 - half a second, and only for this
            from sushy_tools.emulator.resources.systems import fakedriver  # noqa: PLC0415
        from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415

        class Quiet(WSGIRequestHandler):
            def log(self, *_: Any) -> None:
                """Say nothing."""

        app.logger.setLevel(logging.CRITICAL)  # it tells of everything that it refuses
        app.__dict__.pop("_cache", None)  # the drivers of the rack before
        app.config.update(
            SUSHY_EMULATOR_FAKE_DRIVER=True,
            SUSHY_EMULATOR_FAKE_SYSTEMS=[{**system, "external_notifier": True} for system in self._systems],
            SUSHY_EMULATOR_STATE_DIR=str(self._folder),
            EXTERNAL_NOTIFICATION_URL=f"http://127.0.0.1:{self._webhook.server_address[1]}/",
        )
        self._driver = fakedriver
        self._dice = fakedriver.random
        fakedriver.random = _Dice(self._seconds)
        return make_server("127.0.0.1", 0, app, threaded=False, request_handler=Quiet)

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        told = self._told

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                told(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(IMAGE)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler

    def _told(self, system: Mapping[str, Any]) -> None:
        try:
            self._changed(system)
        except Exception as error:  # noqa: BLE001 - whoever made the world asks for the errors
            self.errors.append(error)
        pending = system.get("pending_power")
        with self._something_due:
            if pending:
                self._due[system["uuid"]] = pending["apply_time"]
            else:
                self._due.pop(system["uuid"], None)
            self._something_due.notify_all()

    def _look(self) -> None:
        """Look at every system when something is due there."""
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


class _Dice:
    """Stands for the module random in the driver."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def randint(self, low: int, high: int) -> float:  # noqa: ARG002 - what the driver says
        """Return what, added to the whole seconds of now, is so many seconds from now."""
        return time.time() % 1 + self._seconds
