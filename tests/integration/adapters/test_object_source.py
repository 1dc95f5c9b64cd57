"""Documents and the agent: real files, a real HTTP server, moto for S3, and a scripted S3 for its failures."""

import hashlib
import os
import re
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
import urllib3
from shepherd_core.adapters import locations
from shepherd_core.adapters.agent_cache import AgentCache, AgentFile
from shepherd_core.adapters.documents import read
from shepherd_core.domain.errors import AgentMismatch, SourceError, SourceMissing, SourceUnavailable

from simulator.environment import certificate
from tests.support.providers.scripted_http import DROPPED, Answer, Request, Script, scripted_server

URL = "s3://agents/v1/agent"


@pytest.fixture
def s3(aws: None) -> Any:
    client = boto3.client("s3")
    client.create_bucket(Bucket="agents", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    put(client, b"agent 1")
    return client


def put(s3: Any, body: bytes, key: str = "v1/agent") -> None:
    s3.put_object(Bucket="agents", Key=key, Body=body)


class ScriptedS3:
    """One object in an S3 that the test can make fail; knows only GetObject."""

    def __init__(self, server: Script) -> None:
        self.server = server
        self.answer = Answer(200, b"agent 1", {"ETag": '"1"'})
        server.answer = self._answer

    def _answer(self, request: Request) -> Answer:
        if request.headers.get("If-None-Match") == self.answer.headers.get("ETag", ""):
            return Answer(304)
        return self.answer


@pytest.fixture
def scripted_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedS3]:
    with scripted_server(lambda _: Answer()) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        yield ScriptedS3(server)


def _s3_refusal(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())


def _assert_true(file: AgentFile, content: bytes) -> None:
    """Fail unless all that *file* says of itself is true of *content*."""
    with file.open() as opened:
        assert opened.read() == content
    assert file.sha256 == hashlib.sha256(content).hexdigest()
    assert file.size == len(content)


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
    assert (url in str(raised.value)) == ("hunter2" not in url)
    assert "hunter2" not in str(raised.value)


def test_every_source_gives_a_document_that_is_not_too_large(tmp_path: Path, s3: Any) -> None:
    """A wrong URL must not fill the memory. A key of S3 may hold what means something in other URLs."""
    body = b"x" * 1000
    (tmp_path / "list.json").write_bytes(body)
    put(s3, body, "lists/a b#1?x=%20.json")
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
    for url in (
        str(tmp_path / "none"),
        str(tmp_path / "file" / "none"),
        str(tmp_path),
        "ssm:/none",
        "s3://agents/none",
        "s3://none/none",
    ):
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
        assert f"{server.url}/list" in str(raised.value)
        assert raised.value.retryable is (kind is SourceUnavailable)
        assert "hunter2" not in str(raised.value)
        assert len(server.requests) == 1


def test_a_document_that_trickles_in_is_left_in_time() -> None:
    """Each part comes in time; a machine list that never ends held a loop until it was killed."""
    answer = Answer(200, b" ", repeat=10_000, pause_seconds=0.02)
    with (
        scripted_server(lambda _: answer) as server,
        pytest.raises(SourceUnavailable, match=r"no complete answer within 0\.5 s"),
    ):
        read(server.url, seconds=0.5)


# The agent from S3


def test_the_agent_is_downloaded_again_only_when_it_changed(s3: Any, tmp_path: Path) -> None:
    """It can exceed 100 MB, a warm function asks every minute, and has 512 MB of disk."""
    cache = AgentCache(tmp_path)
    first = cache.fetch(URL)
    _assert_true(first, b"agent 1")
    again, elsewhere = cache.fetch(URL), AgentCache(tmp_path).fetch(URL)
    assert first == again == elsewhere  # the same file on disk, by its inode and time
    put(s3, b"agent two")
    second = cache.fetch(URL)
    assert second != first
    _assert_true(second, b"agent two")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == len("agent two")
    s3.delete_object(Bucket="agents", Key="v1/agent")
    with pytest.raises(SourceMissing, match=URL):  # an operator who withdraws an agent does not want it to run
        cache.fetch(URL)


def test_asking_for_an_unchanged_agent_transfers_nothing(scripted_s3: ScriptedS3, tmp_path: Path) -> None:
    cache = AgentCache(tmp_path)
    for _ in range(3):
        _assert_true(cache.fetch(URL), b"agent 1")
    assert [request.headers.get("If-None-Match") for request in scripted_s3.server.requests] == [None, '"1"', '"1"']


def test_objects_in_one_folder_do_not_meet(s3: Any, tmp_path: Path) -> None:
    put(s3, b"agent 2", "v2/agent")
    cache = AgentCache(tmp_path)
    first, second = cache.fetch(URL), cache.fetch("s3://agents/v2/agent")
    _assert_true(first, b"agent 1")
    _assert_true(second, b"agent 2")


def test_an_agent_that_was_replaced_is_not_opened(s3: Any, tmp_path: Path) -> None:
    """Its SHA-256 would be checked on the machine, for another content. Who has it open reads it to its end."""
    cache = AgentCache(tmp_path)
    old = cache.fetch(URL)
    put(s3, b"agent 2")
    with old.open() as first, old.open() as second:  # it is uploaded to many machines at the same time
        assert first.read(5) == b"agent"
        cache.fetch(URL)
        assert second.read() == b"agent 1"
        assert first.read() == b" 1"
    with pytest.raises(SourceUnavailable, match="fetch it again"):
        old.open()


def test_a_download_that_breaks_off_leaves_nothing_to_be_used(scripted_s3: ScriptedS3, tmp_path: Path) -> None:
    cache = AgentCache(tmp_path)
    scripted_s3.answer = Answer(200, b"agent 1, of which half is miss", {"ETag": '"1"'}, missing=5)
    with pytest.raises(SourceUnavailable, match=URL):
        cache.fetch(URL)
    scripted_s3.answer = Answer(200, b"agent 2", {"ETag": '"2"'})
    _assert_true(cache.fetch(URL), b"agent 2")
    assert "If-None-Match" not in scripted_s3.server.requests[-1].headers


def test_content_that_does_not_match_its_checksum_is_not_used(scripted_s3: ScriptedS3, tmp_path: Path) -> None:
    scripted_s3.answer = Answer(200, b"agent 1", {"ETag": '"1"', "x-amz-checksum-crc32": "AAAAAA=="})
    with pytest.raises(SourceUnavailable, match="FlexibleChecksumError"):
        AgentCache(tmp_path).fetch(URL)
    assert not list(tmp_path.glob("*.kept"))


def test_processes_that_share_a_folder_download_once(scripted_s3: ScriptedS3, tmp_path: Path) -> None:
    caches = [AgentCache(tmp_path), AgentCache(tmp_path)]
    with ThreadPoolExecutor(8) as threads:
        files = list(threads.map(lambda number: caches[number % 2].fetch(URL), range(8)))
    for file in files:
        _assert_true(file, b"agent 1")
    asked = [request.headers.get("If-None-Match") for request in scripted_s3.server.requests]
    assert sum(known != '"1"' for known in asked) == 1


def test_a_large_agent_takes_little_memory(scripted_s3: ScriptedS3, tmp_path: Path) -> None:
    """A function with 256 MB has to carry an agent of 200."""
    AgentCache(tmp_path / "warm").fetch(URL)  # boto3 takes its memory now
    scripted_s3.answer = Answer(200, b"x" * 65_536, {"ETag": '"2"'}, repeat=256)
    tracemalloc.start()
    try:
        file = AgentCache(tmp_path).fetch(URL)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert file.size == 16 * 1024 * 1024
    assert file.sha256 == hashlib.sha256(b"x" * file.size).hexdigest()
    assert peak < 8 * 1024 * 1024


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (_s3_refusal(404, "NoSuchKey"), SourceMissing),
        (_s3_refusal(403, "AccessDenied"), SourceMissing),
        (_s3_refusal(403, "InvalidObjectState"), SourceMissing),
        (_s3_refusal(503, "SlowDown"), SourceUnavailable),
    ],
)
def test_a_refusal_of_s3_is_ours(
    scripted_s3: ScriptedS3, tmp_path: Path, answer: Answer, kind: type[SourceError]
) -> None:
    scripted_s3.answer = answer
    with pytest.raises(kind, match=URL) as raised:
        AgentCache(tmp_path).fetch(URL)
    assert raised.value.retryable is (kind is SourceUnavailable)
    assert raised.value.__cause__ is not None


def test_an_error_that_passes_botocore_by_is_ours() -> None:
    """Botocore lets a broken TLS record through as urllib3 found it; no server can be made to send one at will."""
    with pytest.raises(SourceUnavailable, match="was cut off: SSLError"), locations.s3_errors(URL):
        raise urllib3.exceptions.SSLError


def test_a_folder_that_cannot_be_written_is_named(scripted_s3: ScriptedS3, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceUnavailable, match=f"could not be kept in {tmp_path}/file"):
        AgentCache(tmp_path / "file").fetch(URL)


@pytest.mark.parametrize("owner", ["123456789012", None])
def test_a_bucket_of_another_account_is_not_read(scripted_s3: ScriptedS3, tmp_path: Path, owner: str | None) -> None:
    """A bucket that was deleted can be made again by anybody; S3 refuses it with 403 if it is told whose it must be."""
    AgentCache(tmp_path, owner).fetch(URL)
    read(URL, bucket_owner=owner)
    sent = [request.headers.get("x-amz-expected-bucket-owner") for request in scripted_s3.server.requests]
    assert sent == [owner, owner]


@pytest.mark.parametrize("changed", [b"agent 2", b"agent 1 and more"])
def test_an_agent_with_another_hash_is_refused(s3: Any, tmp_path: Path, changed: bytes) -> None:
    """Anyone who can write to the bucket would be root on every machine."""
    wanted = hashlib.sha256(b"agent 1").hexdigest()
    cache = AgentCache(tmp_path / "cache")
    _assert_true(cache.fetch(URL, wanted), b"agent 1")
    put(s3, changed)
    (tmp_path / "agent").write_bytes(changed)
    for url in (URL, URL, str(tmp_path / "agent")):
        with pytest.raises(AgentMismatch, match=f"{hashlib.sha256(changed).hexdigest()} instead of {wanted}") as raised:
            cache.fetch(url, wanted)
        assert url in str(raised.value)
        assert not raised.value.retryable


def test_a_kept_agent_is_hashed_by_each_process(s3: Any, tmp_path: Path) -> None:
    """Otherwise the name of a file, which anybody could have put there, would stand for its content."""
    wanted = AgentCache(tmp_path).fetch(URL).sha256
    (kept,) = tmp_path.glob("*.kept")
    kept.write_bytes(b"agent of somebody else")
    with pytest.raises(AgentMismatch):
        AgentCache(tmp_path).fetch(URL, wanted)


def test_the_folder_is_private(s3: Any, tmp_path: Path) -> None:
    """Another user of the computer must neither read nor replace what becomes root on machines."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    AgentCache(folder).fetch(URL)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_is_refused(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name in the temporary folder is fixed, so anybody can be there first, also with a link."""
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(SourceError, match="link is a link"):
        AgentCache(tmp_path / "link").fetch(URL)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SourceError, match="own belongs to another user"):
        AgentCache(tmp_path / "own").fetch(URL)
    assert list((tmp_path / "own").iterdir()) == []


@pytest.mark.parametrize("url", ["https://machines.example/agent", "ssm:agent", "s3://agents"])
def test_the_agent_comes_from_a_file_or_from_s3(url: str, tmp_path: Path, aws: None) -> None:
    with pytest.raises(SourceError, match="is not valid; use"):
        AgentCache(tmp_path).fetch(url)


def test_a_local_agent_is_hashed_again_only_when_it_changed(tmp_path: Path) -> None:
    """Size, time and inode tell; here they are made to lie, to see that they are believed."""
    path = tmp_path / "agent"
    path.write_bytes(b"agent 1")
    os.utime(path, ns=(1, 1))
    cache = AgentCache(tmp_path / "cache")
    first = cache.fetch(str(path))
    _assert_true(first, b"agent 1")
    path.write_bytes(b"agent 2")
    os.utime(path, ns=(1, 1))
    assert cache.fetch(str(path)) == first
    os.utime(path, ns=(2, 2))
    second = cache.fetch(str(path))
    _assert_true(second, b"agent 2")
    assert not (tmp_path / "cache").exists()  # a copy would only take room
    path.write_bytes(b"agent 10")
    with pytest.raises(SourceUnavailable, match="replaced since it was fetched"):
        second.open()
    path.unlink()
    with pytest.raises(SourceUnavailable, match="No such file"):
        second.open()
    with pytest.raises(SourceMissing, match=str(path)):
        cache.fetch(str(path))
