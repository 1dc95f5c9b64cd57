"""Heartbeats that a relay passes on in one batch, and such as their agents send directly at the same time."""

import functools
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from random import Random

from shepherd_core.agent.endpoint import AgentApi, AgentRequest
from shepherd_core.domain.pb.callback_pb2 import HeartbeatBatchResponse, HeartbeatRequest, HeartbeatResponse

from tests.chaos.crash_points import Points
from tests.chaos.scenarios.records import Reports
from tests.chaos.stage.environment import Environment
from tests.support.agents.signed_agent import SignedAgent, endpoint, passed_on


class Batches(Reports):
    """
    The agents of ``Reports`` and two more report through relays, which pass on what has no answer yet in one batch.

    The order in a batch changes from one to the next, so that concurrent ones lock the same rows in opposite orders.
    Each batch also has a heartbeat that the relay changed, and is repeated unchanged after its answer. Agents that a
    relay leaves waiting report directly.
    """

    name = "agent_api, batch"

    def arrange(self) -> Environment:
        """See ``Scenario``."""
        environment = super().arrange()
        more = [SignedAgent(self._fleet), SignedAgent(self._fleet)]
        environment.healthy += [agent.machine_id for agent in more]
        self._unanswered += [(agent, HeartbeatRequest()) for agent in more]
        return environment

    def request(self) -> AgentRequest:
        """Return a batch of all unanswered heartbeats."""
        return passed_on(*(agent.request(message) for agent, message in self._unanswered))

    def tick(self, environment: Environment, points: Points) -> object:
        """See ``Scenario``."""
        api = endpoint(environment.connect())
        self._unanswered.reverse()
        sent = list(self._unanswered)
        if not sent:
            return None
        requests = points.aside(lambda: [agent.request(message) for agent, message in sent])
        requests.append(_changed(requests[0]))
        statuses = self._pass_on(api, sent, requests)
        if statuses[-1] == HTTPStatus.OK:
            self._faults.append("a heartbeat that its relay changed was accepted")
        for each, status in zip(sent, statuses, strict=False):
            if status == HTTPStatus.OK and each in self._unanswered:
                self._unanswered.remove(each)
        again = self._pass_on(api, sent, requests)
        if any(HTTPStatus.OK == first == second for first, second in zip(statuses, again, strict=True)):
            self._faults.append("a heartbeat of a batch was accepted twice")
        return None

    def cast(self, environment: Environment, points: Points, chance: Random) -> dict[str, Callable[[], object]]:
        """Return two relays with the same heartbeats, and their agents, for whom both take too long."""
        del chance
        relays = {f"relay {number}": functools.partial(self.tick, environment, points) for number in (1, 2)}
        return {**relays, "directly": functools.partial(super().tick, environment, points)}

    def _pass_on(
        self, api: AgentApi, sent: list[tuple[SignedAgent, HeartbeatRequest]], requests: list[AgentRequest]
    ) -> list[int]:
        """Return the status of each of *requests* in one batch; those of *sent* come first."""
        response = api.handle(passed_on(*requests))
        assert response.relayed, response
        answers = HeartbeatBatchResponse.FromString(response.body).answer
        assert len(answers) == len(requests)
        for (agent, _), request, answer in zip(sent, requests, answers, strict=False):
            if answer.status != HTTPStatus.OK:
                continue
            if not agent.believes(request, answer):
                self._faults.append("an agent does not believe its answer")
            if HeartbeatResponse.FromString(answer.body).HasField("installation_request"):
                self._faults.append("a relay was given an installation request")
        return [answer.status for answer in answers]


def _changed(request: AgentRequest) -> AgentRequest:
    """Return *request* as if its agent had signed it a moment later."""
    later = str(int(request.headers["shepherd-time"]) + 1)
    return replace(request, headers={**request.headers, "shepherd-time": later})
