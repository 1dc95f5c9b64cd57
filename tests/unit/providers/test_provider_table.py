import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import AliasPath
from pydantic.fields import FieldInfo
from shepherd_core import providers
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.domain.remediation import STEPS
from shepherd_core.providers.kit.api_object import ApiObject
from shepherd_core.settings.functions.loops import UpdaterSettings
from shepherd_core.settings.providers import BUILT_IN, NAME, find
from shepherd_core.settings.providers.spec import ProviderSpec
from shepherd_core.wiring.providers import load

from bench import coldstart
from tests.integration.providers.contract.description import Description
from tests.support.deployment.deployments import TEMPLATE

PATH = Path(__file__).parents[3] / "docs" / "providers"
PAGE = (PATH / "README.md").read_text()
CHAPTERS = ["What you need", "Permissions", "Settings", "What it does", "Limits", "Try it"]
MORE = {"redfish": {"SHEPHERD_PROVIDER_REINSTALL": "pxe"}, "ec2": {"SHEPHERD_PROVIDER_MACHINE_TYPE": "t3.small"}}
"""The settings with which a provider can do more, and all that it can ever do."""

SPECS = [find(name) for name in BUILT_IN]
each_provider = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


def built(spec: ProviderSpec, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]) -> Provider:
    for variable, value in {**coldstart.SETTINGS, **more, "SHEPHERD_PROVIDER": spec.name}.items():
        monkeypatch.setenv(variable, value)
    return load(UpdaterSettings)[1]


@each_provider
def test_an_adapter_can_do_what_its_spec_says(spec: ProviderSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops are refused and steps skipped by what the adapter says; operators choose by what the spec says."""
    provider = built(spec, monkeypatch, {})
    assert (provider.name, provider.capabilities) == (spec.name, spec.always)
    assert (spec.name in MORE) is bool(spec.sometimes)
    if spec.sometimes:
        assert built(spec, monkeypatch, MORE[spec.name]).capabilities == spec.always | set(spec.sometimes)


def test_every_provider_has_a_spec_and_can_be_chosen() -> None:
    sources = [source.read_text() for path in providers.__path__ for source in Path(path).rglob("*.py")]
    pattern = r'^class \w+\((?:Provider|HostingProvider)\):.*?^    name = "(\w+)"'
    made = re.findall(pattern, "\n".join(sources), re.DOTALL | re.MULTILINE)
    names = [spec.name for spec in SPECS]
    assert sorted(made) == sorted(names)
    parameter = TEMPLATE["Parameters"]["Provider"]
    assert f" {', '.join(names)}, or " in parameter["Description"]
    assert parameter["AllowedPattern"] == f"^{NAME.pattern}$"


@each_provider
def test_a_spec_names_every_setting_that_names_a_secret(spec: ProviderSpec) -> None:
    assert {name for name in spec.settings.model_fields if name.endswith("_parameter")} <= spec.given


def test_the_tables_say_what_every_provider_can_do() -> None:
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.split("\n\n")[2].splitlines()]
    assert {row[0].strip("`"): dict(zip(table[0][1:], row[1:], strict=True)) for row in table[2:]} == {
        spec.name: {
            capability: "yes" if capability in spec.always else spec.sometimes.get(capability, "no")
            for capability in Capability
        }
        for spec in SPECS
    }
    for spec in SPECS:
        assert re.search(rf"^\| \[`{spec.name}`\]\({spec.name}.md\)", PAGE.split("\n\n")[4], re.MULTILINE)


def test_the_table_of_steps_says_what_each_needs() -> None:
    steps = PAGE.partition("## The steps of recovery")[2]
    found = re.findall(r"^\| `([a-z-]+)` \| .* \| ([a-z-]+) \|$", steps, re.MULTILINE)
    assert found == [(kind.name, kind.needs or "nothing") for kind in STEPS.values()]


@each_provider
def test_every_provider_has_a_page_with_every_chapter(spec: ProviderSpec) -> None:
    page = (PATH / f"{spec.name}.md").read_text()
    assert [each for each in re.findall(r"^## (.*)$", page, re.MULTILINE) if each in CHAPTERS] == CHAPTERS
    settings = page.split("## Settings\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", settings, re.MULTILINE) == list(spec.settings.model_fields)


NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / "data/descriptions").glob("*.json"))
PACKAGES = {each.name for each in pkgutil.iter_modules(providers.__path__) if each.ispkg}
MODULES = {name: f"{name}.objects" if name in PACKAGES else name for name in NAMES}
ADAPTERS = {name: import_module(f"shepherd_core.providers.{module}") for name, module in MODULES.items()}
each_described = pytest.mark.parametrize(("name", "adapter"), ADAPTERS.items(), ids=ADAPTERS)


@each_described
def test_an_adapter_knows_every_status_of_the_description(name: str, adapter: ModuleType) -> None:
    assert set(Description(name).statuses) == set(adapter._STATUS) != set()


@each_described
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
    found = field.validation_alias
    return ".".join(map(str, found.path)) if isinstance(found, AliasPath) else name


@each_described
def test_a_page_shows_what_is_only_assumed(name: str, adapter: ModuleType) -> None:
    assumed = {field.rpartition(".")[2] for field, known in Description(name).fields() if known == "assumed"}
    found = re.search(r"^Only assumed[^:]*: (.*?)\.\n\n", (PATH / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(.*?)`", found[1]) if found else ()) == assumed
