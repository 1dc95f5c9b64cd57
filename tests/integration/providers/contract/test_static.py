"""The static provider keeps the contract that all providers keep."""

import json
from functools import partial
from pathlib import Path

import pytest
from shepherd_core.adapters import documents
from shepherd_core.domain.errors import SourceUnavailable
from shepherd_core.providers.static import StaticProvider

from tests.integration.providers.contract.provider_contract import ProviderContract, Setup

ENTRIES = [
    {"ID": "rack1-1", "Addr": "192.0.2.11", "Location": "Amsterdam"},
    {"ID": "rack1-2", "Addr": "192.0.2.12"},
    {"ID": "00000000-0000-4000-8000-000000000003", "Addr": "2001:db8::3"},
]


class ListFile:
    """A list in a file, read as a function reads it; counts the readings, and can stop answering."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.write_text(json.dumps(ENTRIES))
        self.readings = 0
        self.answers = True

    def read(self) -> bytes:
        self.readings += 1
        if not self.answers:
            raise SourceUnavailable
        return documents.read(str(self.path))

    def stop_answering(self) -> None:
        self.answers = False


class TestStaticProvider(ProviderContract):
    lacks = frozenset({"reboot", "power-cycle", "reinstall", "release", "tokens", "states", "silence"})

    @pytest.fixture
    def setup(self, tmp_path: Path) -> Setup:
        file = ListFile(tmp_path / "machines.json")
        return Setup(
            provider=StaticProvider(file.read),
            capacity_ids=frozenset(entry["ID"] for entry in ENTRIES),
            stores_tokens=False,
            requests=lambda: file.readings,
            make_unavailable=file.stop_answering,
            make_refusing=file.path.unlink,
            spoil_listing=partial(file.path.write_text, json.dumps([*ENTRIES, ENTRIES[0]])),
        )
