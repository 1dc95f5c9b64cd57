import pytest

from agent.shepherd_agent.refusal import AgentRefusal
from agent.shepherd_agent.reports.endpoint import Endpoint


@pytest.mark.parametrize(
    ("address", "host", "port", "path", "encrypted"),
    [
        ("api.example.com:8443", "api.example.com", 8443, "", True),
        ("api.example.com", "api.example.com", None, "", True),
        ("10.0.0.1:443", "10.0.0.1", 443, "", True),
        ("[::1]:443", "::1", 443, "", True),
        ("https://api.example.com/agents/", "api.example.com", None, "/agents", True),
        ("http://127.0.0.1:8080", "127.0.0.1", 8080, "", False),
        ("http://[::1]:8080", "::1", 8080, "", False),
        ("http://localhost:8080", "localhost", 8080, "", False),
    ],
)
def test_an_endpoint_is_address_or_url(address: str, host: str, port: int | None, path: str, encrypted: bool) -> None:
    endpoint = Endpoint(address, b"")
    assert (endpoint._host, endpoint._port, endpoint._path, endpoint.encrypted) == (host, port, path, encrypted)


WRONG = ["ftp://example.com", "https://", ":443", "host:port", "host:99999", "[::1", "a b.example.com", "a..b"]
WRONG += ["example.com/\r\nHost: evil", "ex\u00e4mple.com/\u00e4", f"{'a' * 64}.com", "https://example.com/?query"]
WRONG += ["https://example.com/#fragment", "https://user:secret@example.com", "http://example.com"]
WRONG += ["http://10.0.0.1:8080", "http://127.0.0.1.example.com"]


@pytest.mark.parametrize("address", WRONG)
def test_an_endpoint_that_can_never_work_is_refused(address: str) -> None:
    """At takeover the Initializer reads the error, which repeats no password; later no reader would."""
    with pytest.raises(AgentRefusal, match="bmaas_endpoint") as refusal:
        Endpoint(address, b"")
    assert "secret" not in str(refusal.value)
    with pytest.raises(AgentRefusal, match="ca_certificate"):
        Endpoint("example.com:443", b"no certificate")
