"""The example provider of ``docs/providers/write-your-own.md`` keeps the contract of all providers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[4] / "docs" / "providers" / "write-your-own.md"
ADAPTER, TESTS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)

# What a test module of your own begins with.
_IMPORTS = """
from __future__ import annotations
from typing import TYPE_CHECKING
import pytest
from tests.support.providers.example_provider import KEY, AcmeApi
from tests.support.providers.provider_contract import Places, ProviderContract, Setup
from tests.support.providers.provider_faults import ProviderFaults
"""


def _run(*sources: str) -> ModuleType:
    """Return a module with the code of the page; pydantic looks names up in the module where a class was made."""
    module = ModuleType("acme_on_the_page")
    sys.modules[module.__name__] = module
    for source in sources:
        exec(compile(source, str(PAGE), "exec"), module.__dict__)
    return module


TestAcme = _run(ADAPTER, _IMPORTS, TESTS).TestAcme


def test_the_example_is_short() -> None:
    """The page says that adding a provider takes an afternoon; the length of its code has to agree."""
    assert len((ADAPTER + TESTS).splitlines()) < 150
