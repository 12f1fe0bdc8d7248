"""The first version: jobs, job_events, slots, tokens, gates."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply this version."""
    op.create_table(
        "jobs",
        sa.Column("uid", sa.String(32), nullable=False),
        sa.Column("job_id", sa.String(128), nullable=False),
        sa.Column("owner", sa.String(80), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("engine", sa.String(16), nullable=False),
        sa.Column("engine_ref", sa.String(80), nullable=True),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("num_slots", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("started", sa.Float(), nullable=True),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("cancelled_by", sa.String(80), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=True),
        sa.Column("phases", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("uid", name="pk_jobs"),
        sa.UniqueConstraint("owner", "job_id", name="uq_jobs_owner_job_id"),
    )
    op.create_index("ix_jobs_queue", "jobs", ["state", "owner", "priority", "created"])
    op.create_index("ix_jobs_newest", "jobs", ["owner", "created"])
    op.create_table(
        "job_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_uid", sa.String(32), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_job_events"),
        sa.ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name="fk_job_events_job_uid_jobs", ondelete="CASCADE"),
    )
    op.create_index("ix_job_events_job", "job_events", ["job_uid", "id"])
    op.create_table(
        "slots",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("job_uid", sa.String(32), nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_slots"),
        sa.ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name="fk_slots_job_uid_jobs"),
    )
    op.create_index("ix_slots_job_uid", "slots", ["job_uid"])
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(80), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=True),
        sa.Column("revoked", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_table(
        "gates",
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("job_uid", sa.String(32), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", name="pk_gates"),
    )


def downgrade() -> None:
    """Undo this version."""
    for table in ("gates", "tokens", "slots", "job_events", "jobs"):
        op.drop_table(table)
