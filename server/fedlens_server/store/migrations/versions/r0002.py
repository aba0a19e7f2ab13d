"""Recipes of weighted_sums."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"


def upgrade() -> None:
    """Make their table."""
    op.create_table(
        "weighted_sums",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("recipe", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_weighted_sums")),
    )
