"""Opening a bundle that somebody else made: bounded sizes, known names, no links, nothing outside the folder."""

import re
import stat
import zipfile
from pathlib import Path

import msgspec
import numpy as np

from ddparity._errors import TraceError
from ddparity.bundle._parts import SKETCHES, by_number, restored_digests
from ddparity.bundle._write import HEAD, VERSION, BundleHead
from ddparity.trace._schema import SKETCH_SIZE

MAX_ENTRIES = 200_000
MAX_ENTRY_BYTES = 1 << 30
MAX_BYTES = 4 << 30
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}"
_KNOWN = re.compile(
    rf"bundle\.json|sketches\.f64|trials/{_NAME}/(?:trial\.json|rank-\d{{5,9}}/(?:rank\.json|[a-z]{{1,20}}\.arrow)"
    rf"|comm/[\w-]{{1,80}}\.ring|workers/rank-\d{{5,9}}/[\w.-]{{1,80}}\.jsonl)"
)


def open_bundle(path: Path, folder: Path) -> BundleHead:
    """Unpack a bundle into a folder, as trials that can be judged.

    Args:
        path: The zip file.
        folder: An empty folder; trials stand below ``folder/trials``.

    Raises:
        TraceError: If it is no bundle: too large, a link, an unknown name, a damaged file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = _checked(archive, path)
            head = _head(archive, path)
            raw = _content(archive, infos[SKETCHES], path) if SKETCHES in infos else b""
            if len(raw) % (8 * SKETCH_SIZE):
                raise TraceError(_refused(path, f"{SKETCHES} has {len(raw)} bytes"))
            sketches = np.frombuffer(by_number(raw), dtype="<f8").reshape(-1, SKETCH_SIZE)
            for name, info in infos.items():
                if name not in (HEAD, SKETCHES):
                    _unpack(archive, info, folder, sketches, path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(_refused(path, str(error))) from error
    return head


def _refused(path: Path, reason: str) -> str:
    return f"{path}: not a bundle that ddparity wrote ({reason}). Ask for a new one: ddparity bundle TRIAL -o case.zip"


def _checked(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > MAX_ENTRIES:
        raise TraceError(_refused(path, f"{len(infos)} entries"))
    found: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        kind = stat.S_IFMT(info.external_attr >> 16)
        if not _KNOWN.fullmatch(info.filename) or ".." in info.filename or info.filename in found:
            raise TraceError(_refused(path, f"entry {info.filename[:100]!r}"))
        if kind not in (0, stat.S_IFREG) or info.flag_bits & 1 or info.file_size > MAX_ENTRY_BYTES:
            raise TraceError(_refused(path, f"entry {info.filename!r} is a link, encrypted or too large"))
        found[info.filename] = info
    if sum(info.file_size for info in infos) > MAX_BYTES:
        raise TraceError(_refused(path, "too large when unpacked"))
    return found


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> bytes:
    with archive.open(info) as file:
        data = file.read(info.file_size + 1)  # never more than it claims, and the claims are bounded
    if len(data) != info.file_size:
        raise TraceError(_refused(path, f"entry {info.filename!r} is larger than it says"))
    return data


def _head(archive: zipfile.ZipFile, path: Path) -> BundleHead:
    try:
        head = msgspec.json.decode(_content(archive, archive.getinfo(HEAD), path), type=BundleHead)
    except (KeyError, msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(_refused(path, f"{HEAD}: {error}")) from error
    if head.version != VERSION:
        raise TraceError(f"{path}: a bundle of version {head.version}; this ddparity reads {VERSION}. Upgrade it.")
    bad = [name for name in (*head.trials, *(n for pair in head.pairs for n in pair)) if not re.fullmatch(_NAME, name)]
    if bad:
        raise TraceError(_refused(path, f"trial {bad[0][:80]!r}"))
    return head


def _unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo, folder: Path, sketches: np.ndarray, path: Path) -> None:
    target = folder / info.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    data = _content(archive, info, path)
    if target.name == "digests.arrow":
        restored_digests(data, sketches, target)
    else:
        target.write_bytes(data)
