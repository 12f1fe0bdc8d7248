"""The database's versions, as Alembic runs them."""
