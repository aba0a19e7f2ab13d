"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "blobs",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.Column("kept_until", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_blobs")),
    )
    op.create_table(
        "clients",
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.Integer(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("capabilities", sa.LargeBinary(), nullable=False),
        sa.Column("enrolled_at", sa.Float(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clients")),
    )
    op.create_table(
        "token_uses",
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("token", name=op.f("pk_token_uses")),
    )
    op.create_table(
        "forgotten",
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_forgotten")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("seed", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("committed", sa.Integer(), nullable=False),
        sa.Column("abandoned", sa.Integer(), nullable=False),
        sa.Column("evaluation_round", sa.Integer(), nullable=True),
        sa.Column("evaluation_sets", sa.Text(), nullable=True),
        sa.Column("evaluation_phase", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("name", name=op.f("uq_tasks_name")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "rounds",
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Integer(), nullable=False),
        sa.Column("state", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("bytes_sent", sa.Integer(), nullable=False),
        sa.Column("population", sa.LargeBinary(), nullable=True),
        sa.Column("sitting_out", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["task"], ["tasks.id"], name=op.f("fk_rounds_task")),
        sa.PrimaryKeyConstraint("task", "number", name=op.f("pk_rounds")),
    )
    op.create_table(
        "state_entries",
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=True),
        sa.Column("value", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["blob"], ["blobs.digest"], name=op.f("fk_state_entries_blob")),
        sa.ForeignKeyConstraint(["task"], ["tasks.id"], name=op.f("fk_state_entries_task")),
        sa.PrimaryKeyConstraint("task", "name", name=op.f("pk_state_entries")),
    )
    op.create_table(
        "task_bundles",
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("manifest", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["task"], ["tasks.id"], name=op.f("fk_task_bundles_task")),
        sa.PrimaryKeyConstraint("task", "position", name=op.f("pk_task_bundles")),
    )
    op.create_table(
        "evaluations",
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("client", sa.LargeBinary(), nullable=False),
        sa.Column("body_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("evaluations", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["task", "round"], ["rounds.task", "rounds.number"], name=op.f("fk_evaluations_task")),
        sa.PrimaryKeyConstraint("task", "round", "client", name=op.f("pk_evaluations")),
    )
    op.create_table(
        "members",
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("client", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.Integer(), nullable=False),
        sa.Column("bundle", sa.LargeBinary(), nullable=False),
        sa.Column("sets", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("body_sha256", sa.LargeBinary(), nullable=True),
        sa.Column("bytes_received", sa.Integer(), nullable=False),
        sa.Column("num_examples", sa.Integer(), nullable=False),
        sa.Column("class_counts", sa.Text(), nullable=True),
        sa.Column("evaluations", sa.Text(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["task", "round"], ["rounds.task", "rounds.number"], name=op.f("fk_members_task")),
        sa.PrimaryKeyConstraint("task", "round", "client", name=op.f("pk_members")),
    )
    op.create_index("ix_members_client", "members", ["client"], unique=False)
