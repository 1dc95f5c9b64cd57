import re
import tomllib
from pathlib import Path

import pytest
from shepherd_core.adapters.ssh import client
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.pace import Pace
from shepherd_core.settings import base
from shepherd_core.settings.deployment import CapacitySettings, DeploymentSettings, OperatorSettings
from shepherd_core.settings.functions.loops import RecovererSettings
from shepherd_core.settings.functions.specs import FUNCTIONS
from shepherd_core.settings.providers import BUILT_IN, find
from shepherd_core.settings.rules import RULES
from shepherd_core.settings.sources import DEFAULT_PREFIX

from agent.shepherd_agent.installation import installer
from agent.shepherd_agent.reports import interval
from shepherdctl.descriptions import settings_table
from shepherdctl.descriptions.cures import CURES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CORE = ROOT / "layers" / "shepherd_core" / "shepherd_core"
CORE_PARTS = [CORE / "bmdb", CORE / "bmdb" / "work", ROOT / "tests" / "integration" / "transactions"]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def block(name: str) -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return text.partition(f"<!-- {name}: begin -->\n")[2].partition(f"\n<!-- {name}: end -->")[0]


def test_the_table_of_settings_is_that_of_the_code() -> None:
    """It is generated: `make settings` writes it again."""
    page = (DOCS / "settings.md").read_text()
    assert settings_table.rewritten(page) == page
    assert settings_table.markdown().count("\n| `SHEPHERD_") <= 70


def test_the_page_on_settings_has_every_rule() -> None:
    table = (DOCS / "settings.md").read_text().partition("## Cross-setting rules")[2].partition("## All settings")[0]
    names = {key.rpartition(".")[2].removeprefix(base.PREFIX).lower() for rule in RULES for key in rule.keys}
    indirect = {"loop_minutes", "loop_concurrency", "agent_api_concurrency", "remediation_policy"}  # in words
    assert [name for name in sorted(names - indirect) if f"`{name}`" not in table] == []


def test_no_setting_is_documented_that_does_not_exist() -> None:
    documented = set(re.findall(rf"{base.PREFIX}[A-Z0-9_]*[A-Z0-9]", "\n".join(page.read_text() for page in PAGES)))
    types: list[type[base.Settings]] = [*FUNCTIONS.values(), *(find(name).settings for name in BUILT_IN)]
    types += [CapacitySettings, DeploymentSettings, OperatorSettings]
    fields = {base.variable(each, name) for each in types for name in each.model_fields}
    agents = {interval.INTERVAL_VARIABLE, installer.LIMIT_VARIABLE, installer.GENERATION_VARIABLE}
    assert documented <= fields | agents | {"SHEPHERD_SETTINGS", DEFAULT_PREFIX.rstrip("_")}


def test_the_cures_shown_are_those_of_the_table_of_failures() -> None:
    """The commands show them beside each cause; two answers to one question would be one too many."""
    page = (DOCS / "failures.md").read_text()
    links = re.compile(r"\[[^\]]+\]\(([\w/-]+\.md)?(#[^)]+)?\)")
    rows = re.findall(r'^\| <a id="([a-z-]+)"></a>`\1` \| .+ \| (.+) \|$', page, re.MULTILINE)
    named = {name: links.sub(lambda to: f"docs/{to[1] or 'failures.md'}{to[2] or ''}", cure) for name, cure in rows}
    shown = {name: re.sub(r"(/README)?\.md\b", "", cure) for name, cure in named.items()}  # it is .html on the site
    assert (shown, set(CURES)) == (CURES, set(FailureKind))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r'(?:\]\(|src(?:set)?=")(?!\w+://)([^)\s"]+)', page.read_text())
    assert [target for target in targets if not leads_somewhere(page, *target.partition("#")[::2])] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "zensical.toml").read_text().replace("/index.md", "/README.md")
    pages = {str(page.relative_to(ROOT)) for page in PAGES if DOCS in page.parents}
    assert {page for page in pages if f'"{page}"' not in navigation} == set()


@pytest.mark.parametrize("row", [line for line in block("decided").splitlines() if line.startswith("| ")][1:])
def test_every_question_leads_to_code_and_to_a_page(row: str) -> None:
    _, _, code, page, _ = row.split("|")
    assert [cell for cell in (code, page) if not re.search(r"\]\(([^)\s]+)\)", cell)] == []


def test_the_defaults_repeated_are_those_of_the_settings() -> None:
    told = block("decided")
    named = re.findall(r"`(\w+)`,? \(?([\d,]+) s\b", told)
    assert {name for name, _ in named} == {"heartbeat_timeout_seconds", "startup_timeout_seconds", "session_seconds"}
    pace = Pace()
    for name, value in named:
        default = RecovererSettings.model_fields[name].default if name != "session_seconds" else pace.session_seconds
        assert default == int(value.replace(",", "")), name
    for name, backoff in (("Initializer", pace.start_backoff), ("Recoverer", pace.step_backoff)):
        growth = f"each time \N{MULTIPLICATION SIGN} {backoff.exponent}, at most {backoff.maximum:,} s"
        assert f"{name}: {backoff.initial:,} s, {growth}" in told


def leads_somewhere(page: Path, path: str, anchor: str) -> bool:
    """Return whether *path*, relative to *page*, exists and, if *anchor* is not empty, has such a heading or mark."""
    target = page.parent / path if path else page
    if not anchor:
        return target.exists()
    text = target.read_text() if target.exists() else ""
    headings = (re.sub(r"[^\w -]", "", heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return f'<a id="{anchor}">' in text or anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_the_emulator_that_users_install_is_the_one_tested() -> None:
    install = re.search(r"pip install (.+)", (DOCS / "how-to" / "emulator.md").read_text())
    locked = (ROOT / "requirements" / "emulator.txt").read_text()
    assert install
    assert [each for each in install[1].split() if f"{each} \\\n" not in locked] == []


def test_every_make_target_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"`make ([a-z-]+)", "\n".join(page.read_text() for page in PAGES)))
    assert {target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)} == set()


def test_offered_ssh_algorithms_are_documented_in_order() -> None:
    offered = re.findall(r"`((?:curve|aes|hmac)[a-z0-9@.-]+)`", (DOCS / "failures.md").read_text())
    assert offered == [*client.KEY_EXCHANGES, *client.CIPHERS, *client.MACS]


def test_the_layers_drawn_are_those_that_are_enforced() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    core, deployed = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert block("layers") == "\n".join(["```", *deployed[:-1], *core, "```"])


def test_every_decision_is_in_force_or_withdrawn_and_cited_so() -> None:
    """A heading per number in force, one line per withdrawn one; what names a number links to its place."""
    text = (DOCS / "decisions.md").read_text()
    in_force, withdrawn = (re.findall(rf"^{mark}(\d+)[.:] ", text, re.MULTILINE) for mark in ("## ", "- "))
    numbers = [int(number) for number in in_force + withdrawn]
    assert sorted(numbers) == list(range(1, max(numbers) + 1))
    cited = [link for page in PAGES for link in re.findall(r"\[decision\s(\d+)\]\([^)]*#(\w+)", page.read_text())]
    assert {number: place for number, place in cited if place != (number if number in in_force else "withdrawn")} == {}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/recipes.md", "docs/glossary.md"])
def test_every_file_table_and_name_exists(page: str) -> None:
    named = set(re.findall(r"`([\w./]+)`", (ROOT / page).read_text()))
    named = {name for name in named if not name.startswith(("/", "build/"))}  # of the reader's computer, or made there
    files = {name for name in named if "/" in name or name.endswith((".py", ".sql", ".yaml", ".toml"))}
    names = {name for name in named - files if re.fullmatch(r"_?[a-z]+(_[a-z]+)+|_[a-z]+", name)}
    code = "\n".join(file.read_text() for file in CORE.rglob("*") if file.suffix in {".py", ".sql"})
    code += (ROOT / "samconfig.example.toml").read_text()
    assert {name for name in files if not any((root / name).exists() for root in (ROOT, CORE, *CORE_PARTS))} == set()
    assert {name for name in names if not re.search(rf"\b{name}\b", code)} == set()


def test_the_readme_of_shared_pieces_names_each_of_them() -> None:
    folder = ROOT / "tests" / "support"
    named = re.findall(r"\]\((\w+(?:/\w+)?\.py)\)", (folder / "README.md").read_text())
    assert set(named) == {str(path.relative_to(folder)) for path in folder.rglob("*.py")}
