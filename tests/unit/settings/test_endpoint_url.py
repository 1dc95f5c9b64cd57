"""The endpoint that agents are given: what is no https URL is refused before any machine gets it."""

import pytest
from pydantic import TypeAdapter, ValidationError
from shepherd_core.settings.functions.shared import EndpointUrl

ENDPOINT: TypeAdapter[str] = TypeAdapter(EndpointUrl)


@pytest.mark.parametrize("url", ["https://x.example/fleet", "x.example:8443", "http://127.0.0.1:8080"])
def test_an_endpoint_is_an_https_url(url: str) -> None:
    assert ENDPOINT.validate_python(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x.example",
        "//x.example",
        "https://user:password@x.example",
        "user:password@x.example",
        "https://x.example?key=1",
        "https://x.example#1",
        "https://",
        "",
        "http://x.example",
    ],
)
def test_no_other_endpoint_is_given_to_machines(url: str) -> None:
    with pytest.raises(ValidationError, match="must be"):
        ENDPOINT.validate_python(url)
