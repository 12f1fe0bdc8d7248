"""Making a seal: the files of one save, their sizes and digests, in one JSON file that is written last."""

import hashlib
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ddparity._errors import CheckpointDamaged, UsageError
from ddparity.trace._atomic import write_atomically

SEAL = "ddparity-seal.json"
ALGORITHM = "blake2b-256"
MAX_SEAL_BYTES = 256 << 20
_CHUNK = 4 << 20
_JOBS = 4


class SealedFile(msgspec.Struct, kw_only=True):
    """One file of a save: its size in bytes and the digest of its content in hex."""

    size: int
    digest: str


class Seal(msgspec.Struct, kw_only=True):
    """What belongs to one save.

    Attributes:
        save_id: Names this save; no two have the same.
        sealed: When, in seconds since 1970.
        step: Training step, if the script said so.
        files: Path relative to the checkpoint -> its size and digest.
    """

    schema: int = 1
    save_id: str
    sealed: float
    algorithm: str = ALGORITHM
    step: int | None = None
    files: dict[str, SealedFile]


def seal_path(checkpoint: Path) -> Path:
    """Return where the seal of a checkpoint stands: in the directory, or beside the single file."""
    return checkpoint / SEAL if checkpoint.is_dir() else checkpoint.with_name(f"{checkpoint.name}.{SEAL}")


def seal(checkpoint: Path, *, save_id: str | None = None, step: int | None = None) -> Seal:
    """Digest every file of a finished save, then write the seal.

    Args:
        checkpoint: A directory, or a single file.
        save_id: Name of the save; a random one when None.
        step: Training step of the save.

    Raises:
        UsageError: There is no such checkpoint, it holds no file, or a link leads out of it.
        CheckpointDamaged: A file changed while it was read, or the save is not finished.
    """
    if not checkpoint.exists():
        raise UsageError(f"{checkpoint}: no such checkpoint. Give the directory, or the file, that was saved.")
    paths = sorted(files_of(checkpoint))
    if not paths:
        raise UsageError(f"{checkpoint}: holds no file to seal. Seal it after the save has returned on every rank.")
    _check_finished(checkpoint, paths)
    with ThreadPoolExecutor(max_workers=_JOBS) as pool:
        found = list(pool.map(digest_file, paths))
    made = Seal(
        save_id=save_id or secrets.token_hex(8),
        sealed=time.time(),
        step=step,
        files={name_of(checkpoint, path): each for path, each in zip(paths, found, strict=True)},
    )
    write_atomically(seal_path(checkpoint), msgspec.json.format(msgspec.json.encode(made), indent=1))
    return made


def read_seal(checkpoint: Path) -> Seal | None:
    """Return the seal of a checkpoint, or None if it has none.

    Raises:
        CheckpointDamaged: There is one, and it cannot be read.
    """
    path = seal_path(checkpoint)
    try:
        if path.stat().st_size > MAX_SEAL_BYTES:
            raise CheckpointDamaged(f"{path}: larger than {MAX_SEAL_BYTES >> 20} MiB; it is no seal.")
        found = msgspec.json.decode(path.read_bytes(), type=Seal)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointDamaged(f"{path}: cannot be read as a seal ({error}). Take an older checkpoint.") from error
    if found.schema != 1 or found.algorithm != ALGORITHM:
        raise CheckpointDamaged(
            f"{path}: schema {found.schema}, {found.algorithm}; this ddparity reads schema 1, {ALGORITHM}."
        )
    return found


def files_of(checkpoint: Path) -> Iterator[Path]:
    """Yield the files of a checkpoint, but for its seal and what is being written under another name."""
    if not checkpoint.is_dir():
        yield checkpoint
        return
    root = checkpoint.resolve()
    for path in checkpoint.rglob("*"):
        if path.is_dir() or path == seal_path(checkpoint) or path.name.startswith(f".{SEAL}."):
            continue
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise UsageError(f"{path}: a link that leads out of the checkpoint cannot be sealed. Copy the file.")
        yield path


def name_of(checkpoint: Path, path: Path) -> str:
    """Return the name of a file in the seal."""
    return path.relative_to(checkpoint).as_posix() if checkpoint.is_dir() else path.name


def digest_file(path: Path) -> SealedFile:
    """Return size and digest of a file.

    Raises:
        CheckpointDamaged: It changed while it was read, or cannot be read.
    """
    digest = hashlib.blake2b(digest_size=32)
    size = 0
    try:
        before = path.stat()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
        after = path.stat()
    except OSError as error:
        raise CheckpointDamaged(f"{path}: cannot be read ({error.strerror}). Take an older checkpoint.") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or size != after.st_size:
        raise CheckpointDamaged(f"{path}: is still being written. Seal it after the save has returned on every rank.")
    return SealedFile(size=size, digest=digest.hexdigest())


def _check_finished(checkpoint: Path, paths: list[Path]) -> None:
    """Refuse a directory of torch.distributed.checkpoint whose metadata, written last, is not there."""
    if any(path.suffix == ".distcp" for path in paths) and not (checkpoint / ".metadata").exists():
        raise CheckpointDamaged(f"{checkpoint}: has shards and no .metadata: the save did not finish. Save it again.")
