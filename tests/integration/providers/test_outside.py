import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings import providers
from shepherd_core.wiring.providers import build

from tests.conftest import ManualClock
from tests.integration.providers.contract.provider_contract import context
from tests.support.command_line import CommandLine


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../acme", "letters a to z"),
        ("Acme", "letters a to z"),
        ("a-b", "letters a to z"),
        ("a" * 33, "up to 32"),
        ("1a", "a letter first"),
        ("acme\n", "letters a to z"),
        ("static", "is a provider already"),
        ("core", "there is a Python package shepherd_core"),
    ],
)
def test_a_name_that_cannot_be_a_provider_s_is_refused(
    name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CommandLine(None)("provider", "new", name)
    assert result.exit_code == 2
    assert why in " ".join(result.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_a_new_provider_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shepherd-acme").write_text("mine")
    result = CommandLine(None)("provider", "new", "acme")
    assert (result.exit_code, result.stderr) == (1, "error: shepherd-acme cannot be written: File exists\n")
    assert (tmp_path / "shepherd-acme").read_text() == "mine"


def spec_of(name: str = "acme", table: str = "acme") -> str:
    return f"""
from shepherd_core.settings.base import ProviderSettings
from shepherd_core.settings.providers.spec import ProviderSpec
class Settings(ProviderSettings):
    table = "provider.{table}"
SPEC = ProviderSpec(name="{name}", module="acme", settings=Settings, always=frozenset())
"""


ADAPTER = """
from shepherd_core.domain.provider import Provider
from shepherd_core.providers.static import StaticProvider
def build(settings, context): return Acme()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    providers.installed.cache_clear()
    before = {*sys.modules}
    yield tmp_path
    providers.installed.cache_clear()
    providers.find.cache_clear()
    for name in {*sys.modules} - before:
        del sys.modules[name]


def announce(site: Path, name: str, place: str, package: str = "acme") -> None:
    """Install a package that announces the provider *name* at *place*."""
    folder = site / f"{package}-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[{providers.GROUP}]\n{name} = {place}\n")


NO_ACME = "must return a Provider with the name 'acme'"


@pytest.mark.parametrize(
    ("spec", "adapter", "why"),
    [
        (None, "", "ModuleNotFoundError: No module named 'acme_spec'"),
        ("1 / 0", "", "ZeroDivisionError: division by zero"),
        ("SPEC = ", "", "SyntaxError: invalid syntax"),
        ("", "", "AttributeError: module 'acme_spec' has no attribute 'SPEC'"),
        ("SPEC = 1", "", "TypeError: it must be a ProviderSpec with the name 'acme'"),
        (spec_of("emca", "emca"), "", "TypeError: it must be a ProviderSpec with the name 'acme'"),
        (spec_of(table="ac"), "", "ValueError: Settings.table must be 'provider.acme', not 'provider.ac'"),
        (spec_of(), None, "ModuleNotFoundError: No module named 'acme'"),
        (spec_of(), "", "AttributeError: module 'acme' has no attribute 'build'"),
        (spec_of(), "def build(settings): ...", "TypeError: build() takes 1 positional argument but 2 were given"),
        (spec_of(), "def build(settings, context): return 1", NO_ACME),
        (
            spec_of(),
            f"{ADAPTER}class Acme(Provider): name = 'acme'",
            "TypeError: Can't instantiate abstract class Acme",
        ),
        (spec_of(), f"{ADAPTER}class Acme(StaticProvider):\n def __init__(self): 1", NO_ACME),
    ],
)
def test_a_broken_package_is_named(
    spec: str | None, adapter: str | None, why: str, site: Path, clock: ManualClock
) -> None:
    announce(site, "acme", "acme_spec:SPEC")
    for name, source in (("acme_spec", spec), ("acme", adapter)):
        if source is not None:
            (site / f"{name}.py").write_text(source)
    place = "acme" if spec == spec_of() else "acme_spec:SPEC"
    with pytest.raises(ConfigError, match=f"the package of provider acme is broken at {place}[: ]") as caught:
        build(found := providers.find("acme"), found.settings(), context(clock, "secret"))
    assert why in str(caught.value)


def test_a_command_with_a_broken_package_says_so(site: Path) -> None:
    announce(site, "acme", "broken_acme:SPEC")
    (site / "settings.toml").write_text('version = 1\n[provider.acme]\napi_url = "https://api.example.com"\n')
    result = CommandLine(None)("settings", "check", str(site / "settings.toml"))
    assert result.exit_code == 1
    assert "the package of provider acme is broken at broken_acme:SPEC: ModuleNotFoundError" in result.stderr
    assert "Traceback" not in result.stderr


def test_two_packages_cannot_be_one_provider(site: Path) -> None:
    announce(site, "acme", "one:SPEC", "one")
    announce(site, "acme", "two:SPEC", "two")
    with pytest.raises(ConfigError, match="several packages announce the provider acme: one:SPEC, two:SPEC"):
        providers.find("acme")


def test_a_built_in_provider_needs_no_look_at_packages(site: Path) -> None:
    """Each cold start would pay for it; and no package can take the place of a provider that Shepherd brings."""
    announce(site, "static", "broken:SPEC")
    assert providers.find("static").module == "shepherd_core.providers.static"
    assert providers.installed.cache_info().currsize == 0
    assert "static" not in providers.installed()
