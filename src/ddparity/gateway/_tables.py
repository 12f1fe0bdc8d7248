"""The tables: jobs, what happened to them, the device slots, tokens, and what the gate said of a piece of code."""

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Root of the tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {dict[str, Any]: JSON, list[str]: JSON}  # noqa: RUF012 - SQLAlchemy reads it from the class


class JobRow(Base):
    """One job. ``version`` counts its changes: a writer names the one it has read."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("owner", "job_id"),
        Index("ix_jobs_queue", "state", "owner", "priority", "created"),
        Index("ix_jobs_newest", "owner", "created"),
        Index("ix_jobs_control", "control", "owner"),
    )

    uid: Mapped[str] = mapped_column(String(32), primary_key=True)
    job_id: Mapped[str] = mapped_column(String(128))
    owner: Mapped[str] = mapped_column(String(80))
    state: Mapped[str] = mapped_column(String(16))
    version: Mapped[int] = mapped_column(Integer, default=0)
    engine: Mapped[str] = mapped_column(String(16))
    engine_ref: Mapped[str | None] = mapped_column(String(80))
    request: Mapped[dict[str, Any]]
    num_slots: Mapped[int] = mapped_column(Integer)
    priority: Mapped[int] = mapped_column(Integer)
    created: Mapped[float] = mapped_column(Float)
    started: Mapped[float | None] = mapped_column(Float)
    ended: Mapped[float | None] = mapped_column(Float)
    cancelled_by: Mapped[str | None] = mapped_column(String(80))
    exit_code: Mapped[int | None] = mapped_column(Integer)
    error: Mapped[str | None] = mapped_column(Text)
    metrics: Mapped[dict[str, Any] | None]
    phases: Mapped[dict[str, Any] | None]
    control: Mapped[str | None] = mapped_column(String(80))


class EventRow(Base):
    """One thing that happened to a job; rows are only ever added."""

    __tablename__ = "job_events"
    __table_args__ = (Index("ix_job_events_job", "job_uid", "id"),)

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    job_uid: Mapped[str] = mapped_column(ForeignKey("jobs.uid", ondelete="CASCADE"))
    time: Mapped[float] = mapped_column(Float)
    kind: Mapped[str] = mapped_column(String(32))
    detail: Mapped[dict[str, Any]]


class SlotRow(Base):
    """One device that a rank can have for itself: a GPU, or a share of the processors."""

    __tablename__ = "slots"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(8))
    position: Mapped[int] = mapped_column(Integer)
    job_uid: Mapped[str | None] = mapped_column(ForeignKey("jobs.uid"), index=True)


class TokenRow(Base):
    """One token; its secret is kept as a hash only."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    owner: Mapped[str] = mapped_column(String(80))
    scopes: Mapped[list[str]]
    secret_sha256: Mapped[str] = mapped_column(String(64))
    created: Mapped[float] = mapped_column(Float)
    expires: Mapped[float | None] = mapped_column(Float)
    revoked: Mapped[float | None] = mapped_column(Float)


class GateRow(Base):
    """What the single-device path of a piece of code came to, the last time that it was run."""

    __tablename__ = "gates"

    fingerprint: Mapped[str] = mapped_column(String(64), primary_key=True)
    status: Mapped[str] = mapped_column(String(16))
    job_uid: Mapped[str] = mapped_column(String(32))
    time: Mapped[float] = mapped_column(Float)
