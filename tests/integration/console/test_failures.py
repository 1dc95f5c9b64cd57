"""What the console says when something is wrong: the right status, what it is, and what to do."""

from pathlib import Path

import pytest

from tests.support.bmdb.fleet import Fleet
from tests.support.console import Visitor, said, serving

AFTER_ALL = "ffffffff-ffff-ffff-ffff-ffffffffffff"


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        ("/machines/11111111-1111-4111-8111-111111111111", 404, "There is no such machine."),
        ("/machines/no-such-name", 404, "no machine matches 'no-such-name'"),
        ("/machines/%00", 404, "There is no such machine."),
        ("/machines?state=tired", 400, "state must be one of running, "),
        ("/machines?state=released", 400, "state must be one of running, "),
        ("/machines?provider=none", 400, "provider must be one of "),
        ("/machines?paused=perhaps", 400, "paused must be one of yes, no"),
        ("/machines?paused=yes&paused=no", 400, "paused may be given once"),
        ("/machines?state_older=soon", 400, "state_older: &#39;soon&#39; is not a duration"),
        ("/machines?sort=size", 400, "sort must be one of created"),
        ("/machines?colour=red", 400, "there is no filter &#39;colour&#39;"),
        ("/machines?after=last", 400, "after must be a machine id"),
        ("/machines?text=" + 129 * "x", 400, "text may have 128 characters at most"),
        ("/machines.csv?state=tired", 400, "state must be one of running, "),
        ("/machines/machine-1?days=3", 400, "days must be one of 1, 7, 30"),
        (f"/machines?after={AFTER_ALL}", 404, "There are no machines on this page."),
        ("/nothing", 404, "Not Found"),
        ("/static/../app.py", 404, "Not Found"),
    ],
)
def test_a_wrong_address_tells_why(visitor: Visitor, fleet: Fleet, path: str, status: int, expected: str) -> None:
    """Addresses are sent to colleagues, who have another BMDB or look a week later."""
    fleet.provided_machine()
    response = visitor.get(path)
    assert response.status_code == status
    assert expected.replace("'", "&#39;") in response.text
    assert f"Status {status}" in said(response.text)
    posted = visitor.session.post(visitor.access.address + path.partition("?")[0].lstrip("/"), timeout=30)
    assert posted.status_code in {404, 405}, "it only reads"


def test_a_database_that_is_away_comes_back_by_itself(fleet: Fleet, tmp_path: Path) -> None:
    """The page says what to look at, and is loaded again; the console need not be started again."""
    away = tmp_path / "server"
    with serving(fleet.settings.model_copy(update={"bmdb_host": str(away)})) as access:
        visitor = Visitor(access)
        response = visitor.get("/")
        assert response.status_code == 503
        assert "The BMDB does not answer." in said(response.text)
        assert int(response.headers["Retry-After"]) > 0
        assert '<meta http-equiv="refresh"' in response.text
        away.symlink_to(Path(fleet.settings.bmdb_host))
        assert "There are no machines yet" in visitor.text("/")


def test_a_schema_of_another_version_is_named(own_fleet: Fleet) -> None:
    """During a deployment the console is older or newer for a while."""
    own_fleet.sql("ALTER TABLE ticks RENAME TO moments")
    own_fleet.sql("UPDATE schema_migrations SET version = version + 1000, oldest_code = version + 1000")
    with serving(own_fleet.settings) as access:
        response = Visitor(access).get("/")
        assert response.status_code == 503
        assert "The BMDB and this console are of different versions." in said(response.text)
        own_fleet.sql("ALTER TABLE moments RENAME TO ticks")
        own_fleet.sql("UPDATE schema_migrations SET version = version - 1000, oldest_code = version - 1000")
        assert Visitor(access).get("/").status_code == 200
