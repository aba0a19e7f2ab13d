"""The first schema. Until a release it follows `schema.py`; the first revision after a release writes it out here."""

from alembic import op

from fedlens_server.store.schema import metadata

revision = "0001"
down_revision: str | None = None


def upgrade() -> None:
    """Create the tables."""
    metadata.create_all(op.get_bind())
