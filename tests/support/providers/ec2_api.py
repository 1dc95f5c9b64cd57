"""
EC2 as the adapter meets it: moto behind a real HTTP server, and in front of moto what moto does not do.

Moto launches a second instance for a client token that it knows, always has
room, lets an instance stop at once, and replaces no root volumes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode

from werkzeug.test import Client

from tests.conftest import read_models_once
from tests.support.providers.scripted_http import Answer, Request, Script, scripted_server

ACCOUNT, REGION = "123456789012", "eu-central-1"
FLEET = "fleet-a"
# Every word of this is invented; EC2 checks that an image exists, moto does not.
IMAGE = "ami-0123456789abcdef0"
XML = {"Content-Type": "text/xml;charset=UTF-8"}


def moto_ec2(region: str = REGION) -> Any:
    from moto.ec2.models import ec2_backends  # noqa: PLC0415 - it takes a second to import, and few tests need it

    return ec2_backends[ACCOUNT][region]


def refusal(status: int, code: str, message: str = "no") -> Answer:
    body = f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors></Response>"
    return Answer(status, body.encode(), XML)


class Ec2Api:
    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import create_backend_app  # noqa: PLC0415 - as in moto_ec2

        self.server: Script
        self.calls: Counter[str] = Counter()
        self.launches: list[dict[str, str]] = []
        """The parameters of every RunInstances."""
        self.restarts: Counter[str] = Counter()
        self.reinstalled: list[dict[str, str]] = []
        self.faults: list[Callable[[str, dict[str, str]], Answer | None]] = []
        """Asked before every call; the first answer counts, and the call is not made."""
        self.lost: set[str] = set()
        """Actions whose answers break off."""
        self.hidden: set[str] = set()
        """Instances that DescribeInstances does not show."""
        self.replays = False
        """True: a client token with other parameters is answered with its instance; EC2 may do either."""
        self.looks_until_stopped = 0
        """How often an instance is shown as stopping."""
        self.page_size = 1_000
        self._stopping: dict[str, int] = {}
        self._launched: dict[str, bytes] = {}
        self._moto = Client(create_backend_app("ec2"))
        self._described: dict[str, Answer] = {}
        """What moto said since something may have changed: it takes long to word it."""
        self._stalled = threading.Event()
        self._released = threading.Event()
        self._lock = threading.Lock()

    # What tests do and see

    def instance(self, instance_id: str) -> Any:
        """Return moto's object of an instance; describe the instances before you keep and change it."""
        self._described.clear()
        return moto_ec2().get_instance(instance_id)

    def instances(self) -> list[Any]:
        self._described.clear()
        return list(moto_ec2().all_instances())

    def launch_by_hand(self, **tags: str) -> str:
        self._described.clear()
        launched = moto_ec2().run_instances(
            IMAGE,
            1,
            None,
            [],
            instance_type="m1.small",
            is_instance_type_default=True,
            region_name=REGION,
            tags={"instance": {key.replace("_", "-"): value for key, value in tags.items()}},
            client_token="ABCDE",
        )
        return str(launched.instances[0].id)

    def set_state(self, instance_id: str, state: str, reason: str = "") -> None:
        found = self.instance(instance_id)
        found._state.name = state
        found.state_reason.code = reason
        found.state_reason.message = reason

    def stall(self) -> None:
        self._stalled.set()

    def refuse(self, action: str, answer: Answer, times: int = 1_000) -> None:
        """Answer the next so many calls of an action, or of all (``*``), with this."""
        left = [times]

        def fault(called: str, _: dict[str, str]) -> Answer | None:
            if action not in (called, "*") or not left[0]:
                return None
            left[0] -= 1
            return answer

        self.faults.append(fault)

    def repeat_pages(self) -> None:
        """Let the same page of a listing come again and again."""

        def fault(action: str, asked: dict[str, str]) -> Answer | None:
            if action != "DescribeInstances":
                return None
            asked.pop("NextToken", None)
            body = self._forward(asked).body
            return Answer(200, body.replace(b"<reservationSet>", b"<nextToken>again</nextToken><reservationSet>"), XML)

        self.faults.append(fault)

    # What answers

    def answer(self, request: Request) -> Answer:
        if self._stalled.is_set():
            self._released.wait(60)
            return Answer(503)
        asked = dict(parse_qsl(request.body.decode(), keep_blank_values=True))
        action = asked["Action"]
        with self._lock:
            self.calls[action] += 1
            for fault in self.faults:
                if (found := fault(action, asked)) is not None:
                    return found
            answer = self.perform(action, asked)
        if action in self.lost:
            return Answer(200, answer.body[:100], XML, missing=100)
        return answer

    def perform(self, action: str, asked: dict[str, str]) -> Answer:
        answer: Answer = getattr(self, f"_{action}", self._forward)(asked)
        return answer

    def _forward(self, asked: dict[str, str]) -> Answer:
        body = urlencode(asked)
        if not asked["Action"].startswith("Describe"):
            self._described.clear()
        elif body in self._described:
            return self._described[body]
        found = self._moto.post(
            "/",
            data=body,
            headers={
                "Content-Type": "application/x-www-form-urlencoded",
                "Authorization": f"AWS4-HMAC-SHA256 Credential=testing/20260101/{REGION}/ec2/aws4_request",
            },
            base_url=f"http://ec2.{REGION}.amazonaws.com",
        )
        answer = Answer(found.status_code, found.data, XML)
        self._described[body] = answer
        return answer

    def _RunInstances(self, asked: dict[str, str]) -> Answer:  # noqa: N802 - the name of the action
        self.launches.append(asked)
        token = asked.get("ClientToken", "")
        if token in self._launched:
            known = Answer(200, self._launched[token], XML)
            return known if self.replays else refusal(400, "IdempotentParameterMismatch", asked["UserData"])
        answer = self._forward(asked)
        if answer.status == 200:
            self._launched[token] = answer.body
        return answer

    def _DescribeInstances(self, asked: dict[str, str]) -> Answer:  # noqa: N802 - as above
        for instance_id in list(self._stopping):
            self._stopping[instance_id] -= 1
            if self._stopping[instance_id] < 0:
                self.set_state(instance_id, "stopped")
                del self._stopping[instance_id]
        if "MaxResults" in asked:
            asked = {**asked, "MaxResults": str(min(self.page_size, int(asked["MaxResults"])))}
        if not self.hidden:
            return self._forward(asked)
        kept = moto_ec2().reservations
        shown = {key: each for key, each in kept.items() if not self.hidden & {found.id for found in each.instances}}
        moto_ec2().reservations = shown
        self._described.clear()
        try:
            return self._forward(asked)
        finally:
            moto_ec2().reservations = kept
            self._described.clear()

    def _StopInstances(self, asked: dict[str, str]) -> Answer:  # noqa: N802 - as above
        answer = self._forward(asked)
        if self.looks_until_stopped:
            self.set_state(asked["InstanceId.1"], "stopping")
            self._stopping[asked["InstanceId.1"]] = self.looks_until_stopped
        return answer

    def _StartInstances(self, asked: dict[str, str]) -> Answer:  # noqa: N802 - as above
        self.restarts[asked["InstanceId.1"]] += 1
        return self._forward(asked)

    _RebootInstances = _StartInstances

    def _CreateReplaceRootVolumeTask(self, asked: dict[str, str]) -> Answer:  # noqa: N802 - as above
        if self.instance(asked["InstanceId"])._state.name != "running":
            return refusal(400, "IncorrectInstanceState")
        self.reinstalled.append(asked)
        task = f"<replaceRootVolumeTask><instanceId>{asked['InstanceId']}</instanceId></replaceRootVolumeTask>"
        body = f"<CreateReplaceRootVolumeTaskResponse>{task}</CreateReplaceRootVolumeTaskResponse>"
        return Answer(200, body.encode(), XML)


@contextmanager
def ec2_api() -> Iterator[Ec2Api]:
    read_models_once()
    moto_ec2().reset()
    api = Ec2Api()
    with scripted_server(api.answer) as server:
        api.server = server
        try:
            yield api
        finally:
            api._released.set()


def subnets() -> list[str]:
    return sorted(found.id for found in moto_ec2().describe_subnets())
