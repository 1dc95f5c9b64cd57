import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simulator.environment.certificate import Authority
from tests.integration.transactions.connection import test_access as rules
from tests.support.bmdb.tls_postgres import ADDRESS, USER, make_user


def encrypting_postgres() -> Path | None:
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if b"openssl" in subprocess.run([folder / "pg_config", "--configure"], check=True, capture_output=True).stdout:
            return folder
    return None


@contextmanager
def running(programs: Path, certificate: Path) -> Iterator[int]:
    """Run a PostgreSQL with *certificate* and its key; ``USER`` with ``PASSWORD`` may use the port, with TLS alone."""
    # Not in the tests' own folder: the path of a Unix socket must be short.
    with tempfile.TemporaryDirectory(prefix="bmdb-") as name:
        folder = Path(name)
        data, log, output = folder / "data", folder / "log", folder / "output"
        data.mkdir(mode=0o700)
        log.touch()
        pem = Path(shutil.copy(certificate, folder / "server.pem"))
        pem.chmod(0o600)
        user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        if user is not None:
            for each in (folder, *folder.iterdir()):
                shutil.chown(each, user)

        def run(program: str, *arguments: str) -> None:
            with output.open("wb") as file:  # not a pipe: the server would keep it open
                command: list[str | Path] = [programs / program, *arguments]
                done = subprocess.run(command, check=False, stdout=file, stderr=file, user=user)
            assert done.returncode == 0, output.read_text() + log.read_text()

        run("initdb", "--auth=trust", "-U", "postgres", "-D", str(data))
        (data / "pg_hba.conf").write_text(f"local all all trust\nhostssl all {USER} all scram-sha-256\n")
        with socket.create_server((ADDRESS, 0)) as free:
            port: int = free.getsockname()[1]
        options = f"-h {ADDRESS} -p {port} -k {folder} -F -l -c ssl_cert_file={pem} -c ssl_key_file={pem}"
        run("pg_ctl", "-w", "-D", str(data), "-l", str(log), "-o", options, "start")
        try:
            make_user(folder / f".s.PGSQL.{port}")
            yield port
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "-D", str(data), "stop")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rules.Server]:
    programs = encrypting_postgres()
    if programs is None:
        pytest.skip("no PostgreSQL that was built with TLS is in /usr/lib/postgresql")
    authority = Authority(tmp_path_factory.mktemp("ca"))
    with running(programs, authority.issue(ADDRESS)) as port:
        yield rules.Server(port, authority)


test_right_certificate_and_password = rules.test_a_server_with_the_right_certificate_and_password_is_used
test_wrong_password = rules.test_a_wrong_password_is_refused_and_not_disclosed
test_no_password = rules.test_a_server_says_that_it_wants_a_password
test_certificate_of_another_ca = rules.test_a_certificate_of_another_ca_is_refused
test_long_statement = rules.test_a_statement_may_take_longer_than_a_connection
