"""Who is calling: tokens, kept as hashes, each with an owner and scopes.

A token reads ``ddp_<id>_<secret>``. The secret has 256 bits from the operating system, so that a plain SHA-256 is as
good as a slow hash: there is nothing to guess.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Table, insert, select, update

from ddparity._errors import UsageError
from ddparity.gateway._database import Database
from ddparity.gateway._tables import TokenRow

SCOPES = ("read", "submit", "admin")
"""``read`` sees its owner's jobs, ``submit`` also sends and cancels them, ``admin`` does so with everybody's."""
ANONYMOUS = "local"
_TOKEN = re.compile(r"ddp_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,79}", re.ASCII)
_TOKENS: Table = TokenRow.__table__  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Somebody who calls: whose jobs these are, and what may be done with them."""

    owner: str
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        """Return whether a scope is covered; each covers those before it."""
        return any(SCOPES.index(mine) >= SCOPES.index(scope) for mine in self.scopes)


LOCAL_CALLER = Caller(owner=ANONYMOUS, scopes=frozenset(SCOPES))
"""Who calls a gateway on loopback that demands no token: the one who sits at the machine."""


class Tokens:
    """The tokens of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, owner: str, scopes: Iterable[str], *, days: float | None = None) -> str:
        """Make a token; this is the only time that it can be read.

        Raises:
            UsageError: The owner's name or a scope cannot be used.
        """
        wanted = sorted(set(scopes), key=lambda each: SCOPES.index(each) if each in SCOPES else -1)
        if not wanted or any(scope not in SCOPES for scope in wanted):
            raise UsageError(f"--scopes {','.join(wanted)!r} cannot be used. Allowed are: {', '.join(SCOPES)}.")
        if not _OWNER.fullmatch(owner):
            raise UsageError(f"{owner[:100]!r} cannot be an owner: letters, digits, '.', '_', '@' and '-' only.")
        name, secret, now = secrets.token_hex(6), secrets.token_urlsafe(32), time.time()
        values = {
            "id": name,
            "owner": owner,
            "scopes": wanted,
            "secret_sha256": _hash(secret),
            "created": now,
            "expires": None if days is None else now + days * 86400,
        }
        with self._database.write() as connection:
            connection.execute(insert(_TOKENS).values(values))
        return f"ddp_{name}_{secret}"

    def caller(self, token: str) -> Caller | None:
        """Return who a token belongs to; None if it is none of ours, is revoked, or has expired."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        with self._database.read() as connection:
            row = connection.execute(select(_TOKENS).where(_TOKENS.c.id == match[1])).first()
        if row is None or not hmac.compare_digest(row.secret_sha256, _hash(match[2])):
            return None
        if row.revoked is not None or (row.expires is not None and row.expires < time.time()):
            return None
        return Caller(owner=row.owner, scopes=frozenset(row.scopes))

    def revoke(self, name: str) -> bool:
        """End a token by its id (the part between the underscores); return whether there was one."""
        with self._database.write() as connection:
            statement = update(_TOKENS).where(_TOKENS.c.id == name, _TOKENS.c.revoked.is_(None))
            return connection.execute(statement.values(revoked=time.time())).rowcount == 1

    def any_valid(self) -> bool:
        """Return whether there is a token that somebody could call with."""
        with self._database.read() as connection:
            usable = _TOKENS.c.revoked.is_(None) & (_TOKENS.c.expires.is_(None) | (_TOKENS.c.expires > time.time()))
            return connection.execute(select(_TOKENS.c.id).where(usable).limit(1)).first() is not None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
