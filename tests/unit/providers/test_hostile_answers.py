import json
from typing import Any

import pytest
from shepherd_core.adapters.http.bounded_answer import MOST_VALUES, AnswerTooLong, check_values
from shepherd_core.domain.errors.provider import ListingInvalid, ProviderUnavailable
from shepherd_core.providers.ec2.objects import Instance
from shepherd_core.providers.equinix import objects as equinix
from shepherd_core.providers.kit.api_object import parse
from shepherd_core.providers.kit.fields import from_json

from tests.integration.providers.contract.provider_faults import NO_ADDRESSES, NO_IDS


def test_a_deeply_nested_object_is_refused_with_our_error() -> None:
    """JSON as deep as Python can follow may be deeper than pydantic follows."""
    metro: dict[str, Any] = {}
    for _ in range(900):
        metro = {"metro": metro}
    with pytest.raises(ProviderUnavailable, match="not understood"):
        parse(equinix.Site, metro, "a metro")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    "document",
    [
        '<!DOCTYPE a [<!ENTITY b "' + "<x/>" * 9_000 + '">]><a>' + "&b;" * 300 + "</a>",
        "<!DOCTYPE a [<!ATTLIST x "
        + " ".join(f'a{n} CDATA ""' for n in range(3_000))
        + ">]><a>"
        + "<x/>" * 1_000
        + "</a>",
        "<a " + 'a="" ' * (MOST_VALUES + 1) + "/>",
    ],
    ids=["entities", "defaults", "attributes"],
)
def test_xml_whose_values_are_not_written_out_is_not_parsed(document: str, encoding: str) -> None:
    """Some kilobytes of it become millions of elements or attributes."""
    with pytest.raises(AnswerTooLong):
        check_values(document.encode(encoding))


def test_a_page_of_html_is_left_to_the_parser() -> None:
    """A load balancer's: its status says what is wrong."""
    check_values(b"<!DOCTYPE html><html></html>")


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        *[({"InstanceId": odd}, "without an id") for odd in NO_IDS],
        *[
            ({"InstanceId": "i-1", name: odd}, "as its address")
            for name in ("PrivateIpAddress", "PublicIpAddress", "Ipv6Address")
            for odd in NO_ADDRESSES
            if odd
        ],
    ],
)
def test_an_unusable_instance_makes_the_listing_invalid(shown: dict[str, Any], words: str) -> None:
    """The contract has it of answers in JSON."""
    with pytest.raises(ListingInvalid, match=words):
        Instance.of(shown)


def test_an_honest_listing_of_100_000_servers_is_read() -> None:
    server = {"server_number": 1, "server_name": "ours-1", "server_ip": "192.0.2.1", "ip": ["192.0.2.1"], "dc": "FSN1"}
    extra = {"product": "AX41", "traffic": "unlimited", "status": "ready", "cancelled": False, "paid_until": "2026-12"}
    document = f"[{','.join([json.dumps({'server': {**server, **extra}})] * 100_000)}]".encode()
    assert len(from_json(document)) == 100_000
