"""The plan of a deployment, where it needs more than a small stack has."""

import json
from pathlib import Path

import pytest

from shepherdctl.deployment.answers import read
from shepherdctl.deployment.plan import DeleteCode, Found, FoundObject, FoundStack, plan
from shepherdctl.deployment.template import Package, parameters
from tests.support.deployment.examples import filled_in

ROOT = Path(__file__).parents[3]
ANSWERS = read(filled_in(ROOT / "examples" / "hetzner")["shepherd.toml"].encode(), parameters())


def key(letter: str, suffix: str = "zip") -> str:
    return f"code/{letter * 64}.{suffix}"


NESTED = json.dumps({"CodeUri": f"s3://bucket/{key('b')}"}).encode()
PRESENT = {"CodeUri": f"s3://bucket/{key('a')}", "Location": f"https://s3/bucket/{key('c', 'template')}"}
THERE = {
    **{each: FoundObject("") for each in (key("a"), key("b"), key("d"), "code/of-mine.zip", "documents/agent")},
    key("c", "template"): FoundObject("", NESTED),
    key("e", "template"): FoundObject("", b"{}"),
}


@pytest.mark.parametrize(("template", "deleted"), [({}, [key("d"), key("e", "template")]), (PRESENT, [])])
def test_code_that_a_rollback_needs_stays(template: object, deleted: list[str]) -> None:
    """Also that of nested stacks; without another version, nothing goes."""
    package = Package("code/new", {"code/new": json.dumps(template).encode()})
    stack = FoundStack("UPDATE_COMPLETE", {"BmdbHost": ""}, PRESENT)
    changes = plan(ANSWERS, Found("123456789012", objects=THERE, stack=stack), {}, {}, package)
    assert [key for each in changes if isinstance(each, DeleteCode) for key in each.keys] == deleted
