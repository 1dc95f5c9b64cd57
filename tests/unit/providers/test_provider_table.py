"""The table of ``docs/providers/README.md`` says what the adapters say of themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from shepherd_core import providers
from shepherd_core.domain.provider import Capability
from shepherd_core.domain.remediation import STEPS
from shepherd_core.providers.ec2.adapter import Ec2Provider
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.providers.hetzner.adapter import HetznerProvider
from shepherd_core.providers.redfish.adapter import RedfishProvider
from shepherd_core.providers.static import StaticProvider
from shepherd_core.settings.providers import Ec2Settings, EquinixSettings, HetznerSettings, RedfishSettings

from tests.conftest import ManualClock
from tests.support.deployment.deployments import PROVIDER_SETTINGS

if TYPE_CHECKING:
    from shepherd_core.domain.provider import Provider

PATH = Path(__file__).parents[3] / "docs" / "providers"
PAGE = (PATH / "README.md").read_text()
CHAPTERS = ["What you need", "Permissions", "Settings", "What it does", "Limits", "Try it"]
CLOCK = ManualClock()


def nothing(_: str = "") -> str:
    """Return what no test here looks at."""
    return ""


def no_list() -> bytes:
    """Return what no test here looks at."""
    return b"[]"


def static() -> list[Provider]:
    """Return the provider with all settings on which its capabilities depend. The same for all that follow."""
    return [StaticProvider(no_list)]


def redfish() -> list[Provider]:
    """With and without something to boot from."""
    settings = [RedfishSettings(redfish_list="/list", redfish_boot_source=source) for source in (None, "pxe")]
    return [RedfishProvider(each, no_list, CLOCK, read_secret=nothing, invalidate_secret=print) for each in settings]


def hetzner() -> list[Provider]:
    """With every way to reboot and to reinstall."""
    return [
        HetznerProvider(
            HetznerSettings(
                hetzner_credential_parameter="/unused",
                hetzner_name_prefix="fleet-",
                hetzner_key_name="key",
                hetzner_reboot=reboot,
                hetzner_reinstall=reinstall,
            ),
            nothing,
            nothing,
            CLOCK,
        )
        for reboot in ("software", "hardware")
        for reinstall in ("linux", "rescue")
    ]


def ec2() -> list[Provider]:
    """Bare metal, a Mac and a virtual machine."""
    return [
        Ec2Provider(
            Ec2Settings(
                ec2_fleet="fleet", ec2_limit=1, ec2_subnets="subnet-1", ec2_image="ami-1", ec2_instance_type=kind
            ),
            nothing,
            CLOCK,
        )
        for kind in ("m7i.metal-24xl", "mac2.metal", "t3.small")
    ]


def equinix() -> list[Provider]:
    """As it is."""
    settings = EquinixSettings(
        equinix_project_id="project",
        equinix_api_key_parameter="/unused",
        equinix_device_prefix="fleet-",
        equinix_key_label="key",
    )
    return [EquinixProvider(settings, nothing, nothing, CLOCK)]


ALL = {each.__name__: each for each in (static, redfish, hetzner, ec2, equinix)}


def rows() -> dict[str, dict[str, str]]:
    """Return the cells of the first table, by provider and capability."""
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.split("\n\n")[2].splitlines()]
    return {row[0].strip("`"): dict(zip(table[0][1:], row[1:], strict=True)) for row in table[2:]}


@pytest.mark.parametrize("name", ALL)
def test_the_table_says_what_a_provider_can_do(name: str) -> None:
    """An operator chooses a provider by this table."""
    variants = ALL[name]()
    cells = rows()[name]
    assert set(cells) == set(Capability)
    for capability in Capability:
        can = {capability in provider.capabilities for provider in variants}
        expected = "if " if len(can) > 1 else "yes" if can == {True} else "no"
        assert cells[capability].startswith(expected), f"{name} {capability}"
        assert {provider.name for provider in variants} == {name}


def test_the_table_of_steps_says_what_each_needs() -> None:
    """An operator writes a policy by it."""
    found = re.findall(
        r"^\| `([a-z-]+)` \| .* \| ([a-z-]+) \|$", PAGE.partition("## The steps of recovery")[2], re.MULTILINE
    )
    assert found == [(kind.name, kind.needs or "nothing") for kind in STEPS.values()]


def test_the_tables_have_every_provider() -> None:
    """One that is in no table might as well not be there."""
    modules = (Path(path) for path in providers.__path__)
    sources = [source.read_text() for folder in modules for source in folder.rglob("*.py")]
    pattern = r'^class \w+\(Provider\):.*?^    name = "(\w+)"'
    made = re.findall(pattern, "\n".join(sources), re.DOTALL | re.MULTILINE)
    assert sorted(made) == sorted(ALL) == sorted(rows())
    assert all(re.search(rf"^\| \[`{name}`\]\({name}.md\)", PAGE.split("\n\n")[4], re.MULTILINE) for name in ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_provider_has_a_page_with_all_that_one_needs_to_know(name: str) -> None:
    """All pages have the same sections."""
    page = (PATH / f"{name}.md").read_text()
    chapters = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert [each for each in chapters if each in CHAPTERS] == CHAPTERS
    settings = page.split("## Settings\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", settings, re.MULTILINE) == list(PROVIDER_SETTINGS[name].model_fields)
