"""What Alembic runs: the engine comes from ``Database.migrate``."""

from typing import Any

from alembic import context

from ddparity.gateway._tables import Base


def _run() -> None:
    engine: Any = context.config.attributes["engine"]
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
        context.run_migrations()
        connection.commit()


_run()
