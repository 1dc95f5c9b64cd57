"""The base class of simulated APIs that rent servers at once and may keep SSH keys; a subclass has the API's words."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import FakeMachine, RequestRefused
from simulator.providers.kit.rest import Call, RestApi, route

Json = dict[str, Any]


class HostingApi(RestApi):
    """One account; its machines have the ``fields`` of the requests that ordered them."""

    servers: str = "/servers"
    """The path of the servers, SERVERS in the routes."""
    orders: str = ""
    """The path where they are listed and ordered, ORDERS in the routes, if it is another one."""
    key_store: str = "/ssh-keys"
    """The path of the SSH keys, KEYS in the routes."""
    public_key: ClassVar[str] = "public_key"
    """The field with the line of a key."""
    made: ClassVar[int] = 201
    """The status of the answer that something was made."""
    invalid: ClassVar[int] = 422
    """The status of a refusal because of a value."""
    filters: ClassVar[Sequence[str]] = ()
    """The parameters by which servers are listed; ``filter[x]`` and ``x`` ask for the field ``x``."""

    def __init__(self, hardware: Hardware, **options: Any) -> None:
        super().__init__(hardware, **options)
        self.keys: dict[str, Json] = {}

    @abstractmethod
    def shown(self, machine: FakeMachine) -> Json:
        """Return a server as answers have it."""

    @abstractmethod
    def ordered(self, call: Call) -> FakeMachine:
        """Begin to make a server, by ``create``."""

    @abstractmethod
    def listing(self, call: Call, name: str, items: list[Json]) -> Any:
        """Return the page of a listing of ``servers`` or ``ssh_keys``."""

    def single(self, call: Call, shown: Json) -> Any:  # noqa: ARG002 - for others
        """Return the answer with one object."""
        return shown

    def new_key(self, call: Call) -> Json:
        """Return the fields of the key in a request."""
        return dict(call.body)

    def key(self, key_id: str, fields: Json) -> Json:
        """Return a key as answers have it."""
        return {"id": key_id, **fields}

    def path_of(self, path: str) -> str:
        """See ``RestApi``."""
        orders = self.orders or self.servers
        return path.replace("SERVERS", self.servers).replace("ORDERS", orders).replace("KEYS", self.key_store)

    def lines(self, key_ids: Iterable[str]) -> str:
        """
        Return the lines of keys.

        Raises:
            RequestRefused: one is not there.
        """
        if unknown := [each for each in key_ids if each not in self.keys]:
            raise RequestRefused(self.invalid, f"there is no SSH key {unknown[0]!r}")
        return "\n".join(self.keys[each][self.public_key] for each in key_ids)

    @route("GET", "ORDERS")
    def list_servers(self, call: Call) -> Any:
        """List the servers."""
        asked = {name.removeprefix("filter[").rstrip("]"): call.query.get(name) for name in self.filters}
        found = [
            each
            for each in self.machines.all.values()
            if all(wanted in (None, each.fields.get(name, wanted)) for name, wanted in asked.items())
        ]
        return self.listing(call, "servers", [self.shown(each) for each in found])

    @route("GET", "SERVERS/{id}")
    def get_server(self, call: Call, machine_id: str) -> Any:
        """Return one server."""
        return self.single(call, self.shown(self.machine(machine_id)))

    @route("POST", "ORDERS")
    def create_server(self, call: Call) -> Reply:
        """Begin to make a server."""
        return Reply(status=self.made, body=self.single(call, self.shown(self.ordered(call))))

    @route("DELETE", "SERVERS/{id}")
    def delete(self, _: Call, machine_id: str) -> Any:
        """Begin to delete a server."""
        self.machines.delete(self.machine(machine_id))

    @route("GET", "KEYS")
    def list_keys(self, call: Call) -> Any:
        """List the SSH keys."""
        return self.listing(call, "ssh_keys", [self.key(*each) for each in self.keys.items()])

    @route("POST", "KEYS")
    def add_key(self, call: Call) -> Reply:
        """Add an SSH key."""
        given, key_id = self.new_key(call), self.machines.new_id()
        if any(each[self.public_key] == given[self.public_key] for each in self.keys.values()):
            raise RequestRefused(self.invalid, "the key has already been taken")
        self.keys[key_id] = given
        return Reply(status=self.made, body=self.single(call, self.key(key_id, given)))
