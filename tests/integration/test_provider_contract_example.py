"""The worked example of ``docs/providers/write-your-own.md`` keeps the contract that all providers keep."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[2] / "docs" / "providers" / "write-your-own.md"
ADAPTER, TESTS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)

# What a test module of one's own begins with.
_IMPORTS = """
from __future__ import annotations
from typing import TYPE_CHECKING
import pytest
from simulator.faults import Answer, Delay
from tests.integration.closet import KEY, Closet
from tests.integration.provider_contract import ProviderContract, World
"""


def _run(*sources: str) -> ModuleType:
    """Return what the code on the page makes, as a module: pydantic looks names up where a class was made."""
    module = ModuleType("closet_on_the_page")
    sys.modules[module.__name__] = module
    for source in sources:
        exec(compile(source, str(PAGE), "exec"), module.__dict__)
    return module


TestCloset = _run(ADAPTER, _IMPORTS, TESTS).TestCloset


def test_the_example_is_short() -> None:
    """Adding a provider is an afternoon; whoever reads this page must believe it."""
    assert len((ADAPTER + TESTS).splitlines()) < 150
