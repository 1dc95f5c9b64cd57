import hashlib
import re
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import urllib3
from shepherd_core.adapters import locations
from shepherd_core.adapters.agent_file import AgentFile, OperatorsAgent
from shepherd_core.adapters.documents import read
from shepherd_core.domain.errors import AgentMismatch, SourceError, SourceMissing, SourceUnavailable

from simulator.environment import certificate
from tests.support.providers.scripted_http import DROPPED, Answer, Request, Script, scripted_server

URL = "s3://agents/v1/agent"


@pytest.fixture
def s3(aws: None) -> Any:
    client = boto3.client("s3")
    client.create_bucket(Bucket="agents", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    return client


def holds(answer: Answer) -> Callable[[Request], Answer]:
    tag = answer.headers.get("ETag", "")
    return lambda request: Answer(304) if request.headers.get("If-None-Match") == tag else answer


@pytest.fixture
def scripted_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Return an S3 with one object, which the test can make fail; it knows only GetObject."""
    with scripted_server(holds(Answer(200, b"agent 1", {"ETag": '"1"'}))) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        yield server


def _s3_refusal(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())


def _assert_true(file: AgentFile, content: bytes) -> None:
    with file.open() as opened:
        assert opened.read() == content
    assert (file.sha256, file.size) == (hashlib.sha256(content).hexdigest(), len(content))


def test_a_document_is_read_over_https_from_a_trusted_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one way from other machines. Anyone who can name the machines can have our SSH key tried on them."""
    context, authority = certificate.make("127.0.0.1", tmp_path)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    with scripted_server(lambda _: Answer(200, b"[]"), tls=context) as server:
        monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
        with pytest.raises(SourceUnavailable, match="SSLError"):
            read(f"{server.url}/list")
        assert server.requests == []
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority))
        assert read(f"{server.url}/list") == b"[]"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        # An attacker on the way could replace the machines of the list.
        ("http://192.0.2.1/list", "use https://"),
        ("HTTP://machines.example/list", "use https://"),
        ("http://localhost.example/list", "use https://"),
        ("http://127.0.0.1.example/list", "use https://"),
        ("http:///list", "use https://"),
        # Settings are visible to every reader of the function's configuration.
        ("https://user:hunter2@machines.example/list", "holds a user or a password"),
        ("s3://hunter2@bucket/key", "holds a user or a password"),
        *(
            (url, re.escape(repr(url)))
            for url in ("ftp://x/list", "file:///list", "s3://bucket", "s3:///key", "https://", "https://[::")
        ),
    ],
)
def test_a_url_that_must_not_be_read_is_refused(url: str, why: str, aws: None) -> None:
    with pytest.raises(SourceError, match=why) as raised:
        read(url)
    assert type(raised.value) is SourceError
    assert (url in str(raised.value), "hunter2" in str(raised.value)) == ("hunter2" not in url, False)


def test_every_source_gives_a_document_that_is_not_too_large(tmp_path: Path, s3: Any) -> None:
    """A wrong URL must not fill the memory. A key of S3 may hold what means something in other URLs."""
    body = b"x" * 1000
    (tmp_path / "list.json").write_bytes(body)
    s3.put_object(Bucket="agents", Key="lists/a b#1?x=%20.json", Body=body)
    boto3.client("ssm").put_parameter(Name="/shepherd/list", Value=body.decode(), Type="String")
    with scripted_server(lambda _: Answer(200, body)) as server:
        http = f"{server.url}/list?version=2"
        for url in (str(tmp_path / "list.json"), "s3://agents/lists/a b#1?x=%20.json", "ssm:/shepherd/list", http):
            assert read(url, limit_bytes=1000) == body
            with pytest.raises(SourceError, match="too large: it may have at most 999 bytes"):
                read(url, limit_bytes=999)
    assert {request.path for request in server.requests} == {"/list?version=2"}


def test_a_missing_document_is_named(tmp_path: Path, s3: Any) -> None:
    (tmp_path / "file").touch()
    paths = [str(path) for path in (tmp_path / "none", tmp_path / "file" / "none", tmp_path)]
    for url in (*paths, "ssm:/none", "s3://agents/none", "s3://none/none"):
        with pytest.raises(SourceMissing) as raised:
            read(url)
        assert url in str(raised.value)
        assert not raised.value.retryable


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(404), SourceMissing),
        (Answer(403), SourceMissing),
        (Answer(302, headers={"Location": "http://192.0.2.1/list?signature=hunter2"}), SourceMissing),
        (Answer(204), SourceMissing),
        (Answer(429), SourceUnavailable),
        (Answer(503), SourceUnavailable),
        (Answer(200, b"[", missing=1), SourceUnavailable),
        (DROPPED, SourceUnavailable),
    ],
)
def test_an_answer_without_the_document_is_an_error(answer: Answer, kind: type[SourceError]) -> None:
    """Half a list, or the text of an error, must not be taken for the list."""
    with scripted_server(lambda _: answer) as server:
        with pytest.raises(kind) as raised:
            read(f"{server.url}/list")
        assert (raised.value.retryable, len(server.requests)) == (kind is SourceUnavailable, 1)
        assert (f"{server.url}/list" in str(raised.value), "hunter2" in str(raised.value)) == (True, False)


def test_a_document_that_trickles_in_is_left_in_time() -> None:
    """Each part comes in time; a machine list that never ends held a loop until it was killed."""
    answer = Answer(200, b" ", repeat=10_000, pause_seconds=0.02)
    with (
        scripted_server(lambda _: answer) as server,
        pytest.raises(SourceUnavailable, match=r"no complete answer within 0\.5 s"),
    ):
        read(server.url, seconds=0.5)


def test_the_agent_is_downloaded_again_only_when_it_changed(scripted_s3: Script) -> None:
    """It can exceed 100 MB, and a warm function asks every minute."""
    agent = OperatorsAgent(URL)
    first = agent.fetch()
    assert agent.fetch() is first
    scripted_s3.answer = holds(Answer(200, b"agent two", {"ETag": '"2"'}))
    _assert_true(agent.fetch(), b"agent two")
    with first.open() as opened:
        assert opened.read(5) == b"agent"
        _assert_true(first, b"agent 1")  # who has the old one reads it to its end, and many may
        assert opened.read() == b" 1"
    assert [request.headers.get("If-None-Match") for request in scripted_s3.requests] == [None, '"1"', '"1"']


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (Answer(200, b"agent 2, of which half is miss", {"ETag": '"2"'}, missing=5), SourceUnavailable, ""),
        (Answer(200, b"agent 2", {"x-amz-checksum-crc32": "AAAAAA=="}), SourceUnavailable, "FlexibleChecksumError"),
        (_s3_refusal(404, "NoSuchKey"), SourceMissing, ""),  # who withdraws an agent does not want it to run
        (_s3_refusal(403, "AccessDenied"), SourceMissing, ""),
        (_s3_refusal(403, "InvalidObjectState"), SourceMissing, ""),
        (_s3_refusal(503, "SlowDown"), SourceUnavailable, ""),
    ],
)
def test_no_older_or_incomplete_agent_is_used(
    scripted_s3: Script, answer: Answer, kind: type[SourceError], words: str
) -> None:
    agent = OperatorsAgent(URL)
    _assert_true(agent.fetch(), b"agent 1")
    scripted_s3.answer = holds(answer)
    with pytest.raises(kind, match=f"{URL}.*{words}") as raised:
        agent.fetch()
    assert (raised.value.retryable, raised.value.__cause__ is not None) == (kind is SourceUnavailable, True)
    scripted_s3.answer = holds(Answer(200, b"agent 3", {"ETag": answer.headers.get("ETag", '"3"')}))
    _assert_true(agent.fetch(), b"agent 3")


def test_a_large_agent_takes_little_memory(scripted_s3: Script) -> None:
    """A function with 256 MB has to carry an agent of 200."""
    OperatorsAgent(URL).fetch()  # boto3 takes its memory now
    scripted_s3.answer = holds(Answer(200, b"x" * 65_536, {"ETag": '"2"'}, repeat=256))
    tracemalloc.start()
    try:
        file = OperatorsAgent(URL).fetch()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (file.size, file.sha256) == (16 * 1024 * 1024, hashlib.sha256(b"x" * file.size).hexdigest())
    assert peak < 8 * 1024 * 1024


def test_an_error_that_passes_botocore_by_is_ours() -> None:
    """Botocore lets a broken TLS record through as urllib3 found it; no server can be made to send one at will."""
    with pytest.raises(SourceUnavailable, match="was cut off: SSLError"), locations.s3_errors(URL):
        raise urllib3.exceptions.SSLError


def test_an_agent_without_room_is_told(scripted_s3: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(SourceUnavailable, match="could not be kept: No such file or directory"):
        OperatorsAgent(URL).fetch()


@pytest.mark.parametrize("owner", ["123456789012", None])
def test_a_bucket_of_another_account_is_not_read(scripted_s3: Script, owner: str | None) -> None:
    """A bucket that was deleted can be made again by anybody; S3 refuses it with 403 if it is told whose it must be."""
    OperatorsAgent(URL, bucket_owner=owner).fetch()
    read(URL, bucket_owner=owner)
    assert [request.headers.get("x-amz-expected-bucket-owner") for request in scripted_s3.requests] == [owner, owner]


@pytest.mark.parametrize("changed", [b"agent 2", b"agent 1 and more"])
def test_an_agent_with_another_hash_is_refused(scripted_s3: Script, tmp_path: Path, changed: bytes) -> None:
    """Anyone who can write to the bucket would be root on every machine."""
    wanted = hashlib.sha256(b"agent 1").hexdigest()
    stored, local = OperatorsAgent(URL, wanted), OperatorsAgent(str(tmp_path / "agent"), wanted)
    _assert_true(stored.fetch(), b"agent 1")
    scripted_s3.answer = holds(Answer(200, changed, {"ETag": '"2"'}))
    (tmp_path / "agent").write_bytes(changed)
    for agent in (stored, stored, local):
        with pytest.raises(AgentMismatch, match=f"{hashlib.sha256(changed).hexdigest()} instead of {wanted}") as raised:
            agent.fetch()
        assert not raised.value.retryable


@pytest.mark.parametrize("url", ["https://machines.example/agent", "ssm:agent", "s3://agents"])
def test_the_agent_comes_from_a_file_or_from_s3(url: str, aws: None) -> None:
    with pytest.raises(SourceError, match="is not valid; use"):
        OperatorsAgent(url).fetch()


def test_a_local_agent_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    agent = OperatorsAgent(str(path))
    with pytest.raises(SourceMissing, match=str(path)):
        agent.fetch()
    for content in (b"agent 1", b"agent two"):
        path.write_bytes(content)
        _assert_true(agent.fetch(), content)
