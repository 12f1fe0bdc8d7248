"""Where a gateway is, as those who call one find it: the address and what it was taken from."""

import json
import os
from pathlib import Path

URL_VARIABLE = "DDPARITY_GATEWAY_URL"
TOKEN_VARIABLE = "DDPARITY_TOKEN"
DEFAULT_URL = "http://127.0.0.1:8720"


def address(given: str | None, store: Path | None) -> tuple[str, str]:
    """Return the address of the gateway that is meant, and its source.

    Args:
        given: What the caller asked for.
        store: A store whose gateway is meant where nobody names another.
    """
    written = _written(store)
    sources = [
        (given, "argument"),
        (os.environ.get(URL_VARIABLE), URL_VARIABLE),
        (written, "gateway.json in the store"),
    ]
    url, source = next(((url, source) for url, source in sources if url), (DEFAULT_URL, "default"))
    return url.rstrip("/"), source


def _written(store: Path | None) -> str | None:
    """Return the address that a gateway of this store has written down."""
    if store is None:
        return None
    try:
        return str(json.loads((store / "gateway.json").read_bytes())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
