"""Which control a job is held against: its owner may look at it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply this version."""
    op.add_column("jobs", sa.Column("control", sa.String(80), nullable=True))
    op.create_index("ix_jobs_control", "jobs", ["control", "owner"])


def downgrade() -> None:
    """Undo this version."""
    op.drop_index("ix_jobs_control", "jobs")
    op.drop_column("jobs", "control")
