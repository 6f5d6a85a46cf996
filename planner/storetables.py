"""The tables of a store, in either database."""

from __future__ import annotations

import time
from collections.abc import Mapping

import sqlalchemy as sa

from planner import postgres, sqlite
from planner.errors import StoreDamaged

_SCHEMA = sa.MetaData()
EVENTS = sa.Table(
    "events",
    _SCHEMA,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("body", sa.Text, nullable=False),
)
META = sa.Table("meta", _SCHEMA, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text))


def are_there(connection: sa.Connection, name: str) -> bool:
    """Whether the store was made.  Raises `StoreDamaged` when a table of another program is in its place."""
    existing = set(_SCHEMA.tables) & set(sa.inspect(connection).get_table_names())
    if existing and existing != set(_SCHEMA.tables):
        raise StoreDamaged(
            f"{name} is damaged or no store of this program: of its tables it only holds {', '.join(existing)}."
            " It was left as it is; give another database in [store] url."
        )
    return bool(existing)


def create(connection: sa.Connection, version: int) -> None:
    """Makes them, empty, under a schema version."""
    _SCHEMA.create_all(connection)
    on_sqlite = connection.dialect.name == "sqlite"
    for statement in sqlite.APPEND_ONLY if on_sqlite else postgres.APPEND_ONLY:
        connection.exec_driver_sql(statement)
    connection.execute(sa.insert(META).values(key="schema_version", value=str(version)))
    connection.execute(sa.insert(META).values(key="created_at", value=str(time.time())))


def version_of(meta: Mapping[str, str], name: str) -> int:
    """The schema version that a store says it has.  Raises `StoreDamaged` when it says none."""
    try:
        return int(meta["schema_version"])
    except (KeyError, ValueError) as error:
        raise StoreDamaged(
            f"{name} does not say which schema version it has: it is damaged or no store of this program."
            " It was left as it is; give another file or database in [store] url."
        ) from error
