"""Fresh stores for tests, on SQLite and on the PostgreSQL server that the environment names."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

SERVER = "PLANNER_TEST_POSTGRES"  # the URL of a server's maintenance database, as a user who may make databases
STORES = ("sqlite", "postgres")


def server_url() -> sa.URL:
    """The address of the maintenance database.  Skips the test where there is no server."""
    address = os.environ.get(SERVER)
    if not address:
        pytest.skip(f"{SERVER} is not set")
    return sa.make_url(address).set(drivername="postgresql+psycopg")


def execute(url: sa.URL | str, *statements: str) -> list[tuple[object, ...]]:
    """Runs SQL past the program, each statement for itself; returns the rows of the last."""
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    rows: list[tuple[object, ...]] = []
    try:
        with engine.connect() as connection:
            for statement in statements:
                result = connection.exec_driver_sql(statement)
                rows = [tuple(row) for row in result] if result.returns_rows else []
    finally:
        engine.dispose()
    return rows


@contextlib.contextmanager
def fresh_database(options: str = "") -> Iterator[str]:
    """The URL of an empty database, made with these options and dropped afterwards."""
    server = server_url()
    name = f"planner_test_{uuid.uuid4().hex[:12]}"
    execute(server, f"CREATE DATABASE {name} TEMPLATE template0 {options}")
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        execute(server, f"DROP DATABASE {name} WITH (FORCE)")


@contextlib.contextmanager
def fresh_store(kind: str, folder: Path) -> Iterator[str | Path]:
    """Where a store of this kind may be made: a file in `folder`, or a database of its own."""
    if kind == "sqlite":
        yield folder / "s.sqlite"
    else:
        with fresh_database() as url:
            yield url
