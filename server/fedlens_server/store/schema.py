"""The tables.

Ids, seeds and digests are 32 raw bytes; times are seconds since the epoch; enums are the wire's numbers.
"""

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

clients = Table(
    "clients",
    metadata,
    Column("id", LargeBinary, primary_key=True),
    Column("role", Integer, nullable=False),
    Column("token", Text, nullable=False),
    Column("capabilities", LargeBinary, nullable=False),  # the canonical message
    Column("enrolled_at", Float, nullable=False),
    Column("revoked", Boolean, nullable=False),
)

# The number of clients that have enrolled with each token, including forgotten clients.
token_uses = Table(
    "token_uses",
    metadata,
    Column("token", Text, primary_key=True),
    Column("uses", Integer, nullable=False),
)

# The only trace of a forgotten client; its id cannot enrol again.
forgotten = Table("forgotten", metadata, Column("id", LargeBinary, primary_key=True))

blobs = Table(
    "blobs",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("size", Integer, nullable=False),
    Column("raw", LargeBinary),  # null: stored in a file
    Column("kept_until", Float),  # until then a bundle part without a task is not deleted
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("content", LargeBinary, nullable=False),  # SHA-256 of the operator's request
    Column("settings", Text, nullable=False),  # JSON, without the seed
    Column("seed", LargeBinary, nullable=False),
    Column("state", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("committed", Integer, nullable=False),  # rounds, of all phases
    Column("abandoned", Integer, nullable=False),  # rounds in a row
    Column("evaluation_round", Integer),  # the committed round that evaluators evaluate; null: none yet
    Column("evaluation_sets", Text),  # JSON {name: digest in hex}
    Column("evaluation_phase", Integer),
    sqlite_autoincrement=True,
)

task_bundles = Table(
    "task_bundles",
    metadata,
    Column("task", Integer, ForeignKey("tasks.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("manifest", LargeBinary, nullable=False),
)

# Recipes of the blobs that are computed on demand.
weighted_sums = Table(
    "weighted_sums",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("size", Integer, nullable=False),
    Column("recipe", Text, nullable=False),  # JSON [{names, terms: [[weight, digest of a stored blob in hex]]}]
)

state_entries = Table(
    "state_entries",
    metadata,
    Column("task", Integer, ForeignKey("tasks.id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("kind", Text, nullable=False),  # tensors | array | plain
    Column("blob", LargeBinary, ForeignKey("blobs.digest")),  # of tensors and arrays
    Column("value", Text),  # JSON, of plain values
)

rounds = Table(
    "rounds",
    metadata,
    Column("task", Integer, ForeignKey("tasks.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("phase", Integer, nullable=False),
    Column("state", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("bytes_sent", Integer, nullable=False),
    Column("population", LargeBinary),  # ids of the eligible clients; null once the round has ended
    Column("sitting_out", Text, nullable=False),  # JSON [id in hex] of clients without a download; empty afterwards
)

# One row per member, also its idempotency record; kept as long as the task. The uploaded blob, `blob`, is deleted when
# the round ends.
members = Table(
    "members",
    metadata,
    Column("task", Integer, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("client", LargeBinary, primary_key=True),
    Column("state", Integer, nullable=False),
    Column("bundle", LargeBinary, nullable=False),
    Column("sets", Text, nullable=False),  # JSON {name: digest in hex}
    Column("reason", Text, nullable=False),
    Column("body_sha256", LargeBinary),
    Column("bytes_received", Integer, nullable=False),
    Column("num_examples", Integer, nullable=False),
    Column("class_counts", Text),  # JSON
    Column("label_distribution", Text),  # JSON
    Column("evaluations", Text, nullable=False),  # JSON [[moment, count, correct, loss, confusion?]]
    Column("blob", LargeBinary),
    ForeignKeyConstraint(["task", "round"], ["rounds.task", "rounds.number"]),
    Index("ix_members_client", "client"),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("task", Integer, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("client", LargeBinary, primary_key=True),
    Column("body_sha256", LargeBinary, nullable=False),
    Column("evaluations", Text, nullable=False),  # JSON [[moment, count, correct, loss, confusion?]]
    ForeignKeyConstraint(["task", "round"], ["rounds.task", "rounds.number"]),
)
