"""What is known of the answers of hosting providers, against what their adapters and pages make of it."""

import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import AliasPath
from pydantic.fields import FieldInfo
from shepherd_core import providers
from shepherd_core.providers.kit.api_object import ApiObject

from tests.integration.providers.contract.description import Description

PAGES = Path(__file__).parents[3] / "docs/providers"
NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / "data/descriptions").glob("*.json"))
PACKAGES = {each.name for each in pkgutil.iter_modules(providers.__path__) if each.ispkg}
ADAPTERS = {
    name: import_module(f"shepherd_core.providers.{name}{'.objects' if name in PACKAGES else ''}") for name in NAMES
}
each = pytest.mark.parametrize(("name", "adapter"), ADAPTERS.items(), ids=ADAPTERS)


@each
def test_an_adapter_knows_every_status_of_the_description(name: str, adapter: ModuleType) -> None:
    statuses = Description(name).statuses
    assert statuses
    assert set(statuses) == set(adapter._STATUS)


@each
def test_every_field_that_an_adapter_reads_is_known_from_somewhere(name: str, adapter: ModuleType) -> None:
    """A field that nobody has seen is one that only our simulation has."""
    described = Description(name)
    fields = dict(described.fields())
    assert set(fields.values()) <= {"", "assumed", *described.known}
    kinds = (each for each in vars(adapter).values() if getattr(each, "__module__", "") == adapter.__name__)
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, ApiObject)]
    assert models
    read = {place(name, field) for kind in models for name, field in kind.model_fields.items()}
    known = {f".{field}." for field in fields}
    assert {each for each in read if not any(f".{each}." in field for field in known)} == set()


def place(name: str, field: FieldInfo) -> str:
    """Return where a field is in an answer."""
    found = field.validation_alias
    return ".".join(map(str, found.path)) if isinstance(found, AliasPath) else name


@each
def test_a_page_shows_what_is_only_assumed(name: str, adapter: ModuleType) -> None:
    assumed = {field.rpartition(".")[2] for field, known in Description(name).fields() if known == "assumed"}
    found = re.search(r"^Only assumed[^:]*: (.*?)\.\n\n", (PAGES / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(.*?)`", found[1]) if found else ()) == assumed
