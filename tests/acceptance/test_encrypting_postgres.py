"""Authentication and encryption with a PostgreSQL that was built with TLS, which the tests' own was not."""

from collections.abc import Iterator

import pytest

from simulator.environment.certificate import Authority
from tests.integration.transactions.connection import test_access as rules
from tests.support.bmdb.tls_postgres import ADDRESS, encrypting_postgres, running


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
