"""The schema as it is: generated files are what the migrations make."""

import re

import pytest

from simulator.environment.postgres import Postgres
from tests.support.bmdb import schema
from tests.support.bmdb.fleet import Fleet, administrator


def test_the_schema_on_file_is_what_the_migrations_make(fleet: Fleet) -> None:
    """People read schema.sql instead of adding up migrations; `make schema` writes it."""
    assert schema.schema(fleet._admin) == schema.SCHEMA.read_text()


def test_the_schema_page_is_generated(fleet: Fleet) -> None:
    """A picture drawn by hand would soon show another schema."""
    assert schema.page(fleet._admin) == schema.PAGE.read_text()


def test_the_schema_on_file_makes_the_same_schema(fleet: Fleet, postgres: Postgres) -> None:
    """Something that is missing in it would be missed by its readers too."""
    settings = postgres.new_database("template1")
    with administrator(settings) as driver:
        driver.run(schema.SCHEMA.read_text())
        made = schema.relations(driver)
    postgres.drop(settings)
    # The text of views comes back in other words.
    assert [each.name for each in made] == [each.name for each in schema.relations(fleet._admin)]
    assert {each.sql for each in made if each.query is None} <= set(schema.SCHEMA.read_text().split("\n\n"))


def test_a_view_may_be_replaced_by_one_of_a_newer_table(postgres: Postgres) -> None:
    """It stands behind all tables, however old it is: else schema.sql would make no schema."""
    made, again = postgres.new_database("template1"), postgres.new_database("template1")
    with administrator(made) as driver, administrator(again) as other:
        driver.run("CREATE VIEW old AS SELECT 1 AS x")
        driver.run("CREATE TABLE young (x integer)")
        driver.run("CREATE OR REPLACE VIEW old AS SELECT x FROM young")
        other.run(schema.schema(driver))
    for settings in (made, again):
        postgres.drop(settings)


@pytest.mark.parametrize("relation", schema.comments())
def test_a_table_says_what_a_row_means(relation: str) -> None:
    """Names alone do not say who writes a row, nor when it goes."""
    heading, comment = schema.comments()[relation]
    assert heading
    assert comment.endswith(".")
    if heading != "Views":
        assert re.search(r"\bWritten\b[^.]*; (goes|stays)\b", comment)
