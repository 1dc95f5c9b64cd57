"""The questions of a first deployment: what they accept, and that their answers are enough."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from shepherd_core.settings.providers import BUILT_IN

from shepherdctl.deployment.answers import Answers, read
from shepherdctl.deployment.questions import Place, ask
from shepherdctl.deployment.template import parameters
from tests.support.deployment.deployments import REQUIRED

PARAMETERS = parameters()
LISTED = {
    "static": [{"ID": "a", "Addr": "10.0.0.1"}],
    "redfish": [{"ID": "a", "Addr": "10.0.0.1", "Bmc": "https://10.0.0.2", "Credential": "/shepherd/bmc/a"}],
}


class Operator:
    """Replies to each question what it was told, in turn; else what is in brackets."""

    def __init__(self, replies: Mapping[str, list[str]]) -> None:
        self.replies = {name: [*each] for name, each in replies.items()}
        self.told: list[str] = []
        self.asked: list[str] = []

    def reply(self, prompt: str) -> str:
        name = prompt.partition(" [")[0].removesuffix(": ")
        self.asked.append(name)
        left = self.replies.get(name, [])
        return f"{left.pop(0)}\n" if left else "\n"


def answered(folder: Path, provider: str = "static", /, **replies: list[str]) -> tuple[Answers, Operator]:
    (folder / "machines.json").write_text(json.dumps(LISTED.get(provider, [])))
    of_provider = {name: value for name, value in REQUIRED[provider].items() if name != "machines"}
    given = {"provider": provider, "bmdb_host": "127.0.0.1", **of_provider}
    operator = Operator({**{name: [each] for name, each in given.items()}, **replies})
    text = ask(operator.reply, operator.told.append, PARAMETERS, Place("123456789012", "eu-central-1", folder))
    return read(text.encode(), PARAMETERS), operator


@pytest.mark.parametrize("provider", BUILT_IN)
def test_the_answers_are_those_of_a_deployment(provider: str, tmp_path: Path) -> None:
    answers, operator = answered(tmp_path, provider)
    assert (answers.provider, answers.stack, answers.region) == (provider, "shepherd", "eu-central-1")
    assert answers.bucket == "shepherd-123456789012-eu-central-1"
    assert len(operator.asked) <= 15
    assert provider != "latitude" or "Range: ≥ 1" in "\n".join(operator.told)


def test_a_wrong_reply_is_explained_and_asked_again(tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('[{"ID": "a"}]')
    replies = {
        "bucket": ["My Bucket", "my-bucket"],
        "stack": ["7", "blue"],
        "bmdb_login": ["root", "one-password"],
        "bmdb_host": ["", "database.invalid"],
        "machines.json": ["wrong.json", "absent.json", "machines.json"],
    }
    answers, operator = answered(tmp_path, **replies)
    assert (answers.bucket, answers.stack, answers.documents) == (
        "my-bucket",
        "blue",
        {"machines.json": "machines.json"},
    )
    told = "\n".join(operator.told)
    for expected in (
        PARAMETERS["BmdbHost"].about,
        "'root' must be passwords",
        "'My Bucket' must be the name of a bucket",
        "'7' must begin with a letter",
        "there is no default: type a value",
        "database.invalid does not answer here",
        "Addr is missing",
        "absent.json",
    ):
        assert expected in told
