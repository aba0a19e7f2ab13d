"""The tables, the same in SQLite and PostgreSQL.

Ids, seeds and digests are 32 raw bytes; times are seconds since the epoch; enums are the wire's numbers.
"""

import sqlalchemy as sa

from fedlens_server.store.dialects import INTEGER, Textual

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

clients = sa.Table(
    "clients",
    metadata,
    sa.Column("id", sa.LargeBinary, primary_key=True),
    sa.Column("role", INTEGER, nullable=False),
    sa.Column("token", Textual, nullable=False),
    sa.Column("capabilities", sa.LargeBinary, nullable=False),  # the canonical message
    sa.Column("enrolled_at", sa.Float, nullable=False),
    sa.Column("banned_at", sa.Float),  # null: it is not banned
    sa.Column("ban_reason", Textual),
    sa.Column("last_seen", sa.Float),  # seconds since the epoch, up to an hour old; null: never since it enrolled
    sa.Index("ix_clients_token", "token"),
)

# Rights that operators gave to others: to enrol, or to operate.
tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", INTEGER, primary_key=True),
    sa.Column("name", Textual, nullable=False, unique=True),
    sa.Column("role", INTEGER, nullable=False),
    sa.Column("sha256", Textual, nullable=False, unique=True),  # of the secret, in hexadecimal
    sa.Column("max_uses", INTEGER),  # null, as `per_minute`: it is an operator's
    sa.Column("per_minute", INTEGER),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
)

# The number of clients that have enrolled with each token, including forgotten clients.
token_uses = sa.Table(
    "token_uses",
    metadata,
    sa.Column("token", Textual, primary_key=True),
    sa.Column("uses", INTEGER, nullable=False),
)

# The only trace of a forgotten client; its id cannot enrol again.
forgotten = sa.Table("forgotten", metadata, sa.Column("id", sa.LargeBinary, primary_key=True))

# The server that may write and answer, in its one row: each one that takes the lead begins the next term.
lead = sa.Table(
    "lead",
    metadata,
    sa.Column("term", INTEGER, primary_key=True, autoincrement=False),
    sa.Column("holder", Textual, nullable=False),
    sa.Column("expires", sa.Float, nullable=False),  # by the clock of the database, which others do not have
)

blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("size", INTEGER, nullable=False),
    sa.Column("raw", sa.LargeBinary),  # null: stored in a file or an object
    sa.Column("object", Textual),  # its key; null: in a file, or this row
    sa.Column("kept_until", sa.Float),  # until then a bundle part without a task is not deleted
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", INTEGER, primary_key=True),
    sa.Column("name", Textual, nullable=False, unique=True),
    sa.Column("content", sa.LargeBinary, nullable=False),  # SHA-256 of the operator's request
    sa.Column("settings", Textual, nullable=False),  # JSON, without the seed
    sa.Column("seed", sa.LargeBinary, nullable=False),
    sa.Column("state", INTEGER, nullable=False),
    sa.Column("reason", Textual, nullable=False),
    sa.Column("deleted", sa.Boolean, nullable=False, default=False),  # its rows are being deleted
    sa.Column("paused", Textual, nullable=False, default=""),  # by whom or why; empty: it is not
    sa.Column("paused_for", INTEGER),  # the last round whose model paused it; null: none
    sa.Column("committed", INTEGER, nullable=False),  # rounds, of all phases
    sa.Column("abandoned", INTEGER, nullable=False),  # rounds in a row
    sa.Column("most_participations", INTEGER, nullable=False, default=0),  # rounds of one client: spent privacy
    sa.Column("bounds", Textual),  # JSON [phase, trained, buffers]: median norms of the last round; null: none
    sa.Column("released", Textual),  # JSON [round, committed rounds] of the model that clients predict with; null: none
    sa.Column("evaluation_round", INTEGER),  # the committed round that evaluators evaluate; null: none yet
    sa.Column("evaluation_sets", Textual),  # JSON {name: digest in hex}
    sa.Column("evaluation_phase", INTEGER),
    sqlite_autoincrement=True,
)

task_bundles = sa.Table(
    "task_bundles",
    metadata,
    sa.Column("task", INTEGER, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("position", INTEGER, primary_key=True),
    sa.Column("manifest", sa.LargeBinary, nullable=False),
    sa.Column("statement", sa.LargeBinary, nullable=False, default=b""),  # signed; empty: nobody has signed it
    sa.Column("reports", INTEGER, nullable=False, default=0),  # with this bundle, up to `canary`
)

# Recipes of the blobs that are computed on demand.
weighted_sums = sa.Table(
    "weighted_sums",
    metadata,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("size", INTEGER, nullable=False),
    sa.Column("recipe", Textual, nullable=False),  # JSON [{names, terms: [[weight, digest of a stored blob in hex]]}]
)

state_entries = sa.Table(
    "state_entries",
    metadata,
    sa.Column("task", INTEGER, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("round", INTEGER, primary_key=True),  # 0: the present state; else a copy as it was after that round
    sa.Column("client", sa.LargeBinary, primary_key=True),  # id; empty: the entry belongs to no client
    sa.Column("name", Textual, primary_key=True),
    sa.Column("kind", Textual, nullable=False),  # tensors | array | plain
    sa.Column("blob", sa.LargeBinary, sa.ForeignKey("blobs.digest")),  # of tensors and arrays
    sa.Column("value", Textual),  # JSON, of plain values
)

rounds = sa.Table(
    "rounds",
    metadata,
    sa.Column("task", INTEGER, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("number", INTEGER, primary_key=True),
    sa.Column("phase", INTEGER, nullable=False),
    sa.Column("state", INTEGER, nullable=False),
    sa.Column("reason", Textual, nullable=False),
    sa.Column("opened_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),  # the first place was given; null: none yet, or the members were drawn
    sa.Column("ended_at", sa.Float),
    sa.Column("bytes_sent", INTEGER, nullable=False),
    sa.Column("ended_by", Textual, nullable=False, default=""),  # the operator who ended it early; empty: nobody
    sa.Column("population", sa.LargeBinary),  # ids of the eligible clients; null once the round has ended
    sa.Column(
        "sitting_out", Textual, nullable=False
    ),  # JSON [id in hex] of clients without a download; empty afterwards
    sa.Column("kept_from", sa.Float),  # as `ended_at` while rows of its members are kept; null: none are, or it goes on
    sa.Column("unlisted", Textual),  # JSON [[state, members, bytes_received]] of deleted rows of members; null: none
    sa.Index("ix_rounds_kept_from", "kept_from"),
)

# One row per member, also its idempotency record; kept for some days after the round's end. The uploaded blobs,
# `blobs`, are deleted when the round ends.
members = sa.Table(
    "members",
    metadata,
    sa.Column("task", INTEGER, primary_key=True),
    sa.Column("round", INTEGER, primary_key=True),
    sa.Column("client", sa.LargeBinary, primary_key=True),
    sa.Column("state", INTEGER, nullable=False),
    sa.Column("bundle", sa.LargeBinary, nullable=False),
    sa.Column("phase", INTEGER, nullable=False),  # whose local plan it carries out
    sa.Column("sets", Textual, nullable=False),  # JSON {name: digest in hex}
    sa.Column("reason", Textual, nullable=False),
    sa.Column("body_sha256", sa.LargeBinary),
    sa.Column("bytes_received", INTEGER, nullable=False),
    sa.Column("num_examples", INTEGER, nullable=False),
    sa.Column("class_counts", Textual),  # JSON
    sa.Column("label_distribution", Textual),  # JSON
    sa.Column("norms", Textual),  # JSON [trained, buffers, own, nearest download]
    sa.Column("evaluations", Textual, nullable=False),  # JSON [[label, count, correct, loss, confusion?]]
    sa.Column("blobs", Textual, nullable=False),  # JSON {name of the upload: digest in hex}
    sa.ForeignKeyConstraint(["task", "round"], ["rounds.task", "rounds.number"]),
    sa.Index("ix_members_client", "client"),
)

# What a task that selects by arrival knows of a client that it has given a place.
participants = sa.Table(
    "participants",
    metadata,
    sa.Column("task", INTEGER, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("client", sa.LargeBinary, primary_key=True),
    sa.Column("last_round", INTEGER, nullable=False),  # in which it reported; 0: none
    sa.Column("times", INTEGER, nullable=False),  # rounds in which it reported
    sa.Column("misses", INTEGER, nullable=False),  # places in a row without a report
    sa.Column("quarantines", INTEGER, nullable=False),
    sa.Column("sits_out_until", sa.Float, nullable=False),  # seconds since the epoch
    sa.Index("ix_participants_client", "client"),
)

evaluations = sa.Table(
    "evaluations",
    metadata,
    sa.Column("task", INTEGER, primary_key=True),
    sa.Column("round", INTEGER, primary_key=True),
    sa.Column("client", sa.LargeBinary, primary_key=True),
    sa.Column("body_sha256", sa.LargeBinary, nullable=False),
    sa.Column("evaluations", Textual, nullable=False),  # JSON [[label, count, correct, loss, confusion?]]
    sa.ForeignKeyConstraint(["task", "round"], ["rounds.task", "rounds.number"]),
)

# The latest changes by operators.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", INTEGER, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("operator", Textual, nullable=False),
    sa.Column("action", Textual, nullable=False),
    sa.Column("subject", Textual, nullable=False),
    sa.Column("detail", Textual, nullable=False),
    sqlite_autoincrement=True,
)
