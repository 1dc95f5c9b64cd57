import json
from functools import partial
from pathlib import Path
from threading import Event

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


class TestStaticProvider(ProviderContract):
    lacks = frozenset({"reboot", "power-cycle", "reinstall", "release", "tokens", "states", "silence"})

    @pytest.fixture
    def setup(self, tmp_path: Path) -> Setup:
        file, readings, silent = tmp_path / "machines.json", list[bool](), Event()
        file.write_text(json.dumps(ENTRIES))

        def read() -> bytes:
            readings.append(True)
            if silent.is_set():
                raise SourceUnavailable
            return documents.read(str(file))

        return Setup(
            provider=StaticProvider(read),
            capacity_ids=frozenset(entry["ID"] for entry in ENTRIES),
            stores_tokens=False,
            requests=lambda: len(readings),
            make_unavailable=silent.set,
            make_refusing=file.unlink,
            spoil_listing=partial(file.write_text, json.dumps([*ENTRIES, ENTRIES[0]])),
        )
