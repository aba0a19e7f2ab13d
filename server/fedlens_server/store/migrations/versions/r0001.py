"""The first schema. Until a release it follows `schema.py`; the first revision after a release writes it out here."""

from alembic import op

from fedlens_server.store.schema import lead, metadata

revision = "0001"
down_revision: str | None = None


def upgrade() -> None:
    """Create the tables, before the first server leads."""
    metadata.create_all(op.get_bind())
    op.execute(lead.insert().values(term=0, holder="", expires=0.0))
