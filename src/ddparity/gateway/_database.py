"""The database: SQLite beside the trials by default, PostgreSQL by URL; brought up to date by Alembic at the start.

SQLite is used as it bears a service: write-ahead log, and every transaction that will write begins IMMEDIATE (a read
that becomes a write later fails with "database is locked" under load, whatever the time-out). Writers of this process
take turns on a lock of their own, because SQLite's waiters sleep and are overtaken.
"""

import contextlib
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from ddparity._errors import UsageError

_MIGRATIONS = Path(__file__).parent / "migrations"
_BUSY_MILLISECONDS = 30_000


class Database:
    """The connections to one database.

    Args:
        url: As SQLAlchemy reads it: ``sqlite:///PATH`` or ``postgresql+psycopg://...``.

    Raises:
        UsageError: The URL names no database that can be used here.
    """

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def read(self) -> Generator[Connection]:
        """Yield a connection for reading; what it sees is of one moment."""
        with self.engine.connect() as connection:
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN DEFERRED")
            yield connection

    @contextlib.contextmanager
    def write(self) -> Generator[Connection]:
        """Yield a connection in a transaction that is committed at the end, or undone by an error."""
        with self._turn if self.is_sqlite else contextlib.nullcontext(), self.engine.connect() as connection:
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()

    def migrate(self) -> None:
        """Bring the tables up to this version."""
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        config.attributes["engine"] = self.engine
        command.upgrade(config, "head")

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file."""
    return f"sqlite:///{path}"


def _engine(url: str) -> Engine:
    try:
        name = make_url(url).get_backend_name()
    except ArgumentError:
        name = ""
    if name not in ("sqlite", "postgresql"):
        raise UsageError(
            f"The database {name or 'URL'} cannot be used. Allowed are sqlite:///PATH and postgresql+psycopg://HOST/NAME."
        )
    try:
        if name == "postgresql":
            return create_engine(url, pool_pre_ping=True)
        engine = create_engine(url, poolclass=QueuePool, pool_size=8, max_overflow=56, pool_timeout=30)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise UsageError(
            f"The database driver is missing ({error}). For PostgreSQL: pip install 'ddparity[postgres]', and a URL "
            "that begins with postgresql+psycopg://"
        ) from error
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin_nothing)
    return engine


def _prepare(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where this module says, and nowhere else
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={_BUSY_MILLISECONDS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_nothing(_connection: Connection) -> None:
    """Leave it to ``read`` and ``write`` to begin."""
