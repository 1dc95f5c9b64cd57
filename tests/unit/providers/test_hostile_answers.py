"""Answers of providers that no honest API gives: bounded before they are parsed, and refused with our own errors."""

import json
from typing import Any

import pytest
from shepherd_core.adapters.http.bounded_answer import MOST_VALUES, AnswerTooLong, check_values
from shepherd_core.domain.errors.provider import ListingInvalid, ProviderUnavailable
from shepherd_core.providers.ec2.objects import Instance
from shepherd_core.providers.equinix import objects as equinix
from shepherd_core.providers.kit.answer import HttpAnswer
from shepherd_core.providers.kit.api_object import parse
from shepherd_core.providers.kit.fields import from_json
from shepherd_core.providers.kit.machine_list import MachineList
from shepherd_core.providers.redfish.answer import BmcAnswer

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
MANY = b"[" + b"{}," * MOST_VALUES + b"{}]"
HOSTILE = pytest.mark.parametrize("document", [DEEP, MANY, b"[" * 200_000, b"9" * 5000, b"\xff"])


@HOSTILE
def test_a_hostile_document_is_not_json_to_us(document: bytes) -> None:
    """A RecursionError would leave the adapter, and millions of empty objects would not fit into a function."""
    with pytest.raises(ValueError, match=r"\w"):
        from_json(document)


@HOSTILE
def test_every_reader_of_answers_refuses_a_hostile_document(document: bytes) -> None:
    """Each has an error of our own for what is no JSON, which its callers expect."""
    assert HttpAnswer(200, document, None).decoded() is None
    with pytest.raises(ValueError, match="no JSON"):
        BmcAnswer(200, {}, document, str).json()
    with pytest.raises(ListingInvalid, match="is not JSON"):
        MachineList(lambda: document).parse(document)


def test_an_object_that_is_nested_deeply_is_refused_with_our_error() -> None:
    """JSON as deep as Python can follow may be deeper than pydantic follows."""
    metro: dict[str, Any] = {}
    for _ in range(900):
        metro = {"metro": metro}
    with pytest.raises(ProviderUnavailable, match="not understood"):
        parse(equinix.Place, metro, "a metro")


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


NO_IDS = pytest.mark.parametrize("machine_id", ["", "invalid", "x" * 129, "a\0b", "\ud800", None, 7])


@NO_IDS
def test_a_machine_without_a_usable_id_makes_the_listing_invalid(machine_id: object) -> None:
    """An empty id would name all such machines at once; the BMDB cannot hold the others."""
    with pytest.raises(ListingInvalid, match="without an id"):
        Instance.of({"InstanceId": machine_id})


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "fe80::1%eth0", "300.1.1.1", "localhost", 7])
def test_an_address_that_no_machine_can_have_is_never_dialed(address: object) -> None:
    """0.0.0.0 is the function itself, and a name would be looked up."""
    for name in ("PrivateIpAddress", "PublicIpAddress", "Ipv6Address"):
        with pytest.raises(ListingInvalid, match="as its address"):
            Instance.of({"InstanceId": "i-1", name: address})


def test_an_honest_listing_of_100_000_servers_is_read() -> None:
    """The bounds are for the hostile alone."""
    server = {"server_number": 1, "server_name": "ours-1", "server_ip": "192.0.2.1", "ip": ["192.0.2.1"], "dc": "FSN1"}
    extra = {"product": "AX41", "traffic": "unlimited", "status": "ready", "cancelled": False, "paid_until": "2026-12"}
    document = json.dumps([{"server": {**server, **extra}}] * 100_000).encode()
    assert len(from_json(document)) == 100_000
