"""Noisy label distributions."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"


def upgrade() -> None:
    """Let members have them."""
    op.add_column("members", sa.Column("label_distribution", sa.Text(), nullable=True))
