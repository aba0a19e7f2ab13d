"""Upgrades of a database from an older version of FedLens; alembic runs them when the store opens."""
