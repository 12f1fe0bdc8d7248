"""``ddparity config``: every setting, its value, and where the value comes from."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ddparity._errors import UsageError
from ddparity._plain import plain
from ddparity.cli._documents import Setting, Settings
from ddparity.cli._main import DEBUG_VARIABLE
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json, table

_DEFAULT = "default"


def config(
    store: StoreOption = None,
    gateway: Annotated[bool, typer.Option("--gateway", help="Also what ddparity serve would run with.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Show every setting with its value and where that comes from. Tokens and passwords are never shown.

    An argument goes before the environment, that before gateway.toml in the store (which only the gateway reads), and
    that before the default.
    """
    from ddparity.trials import Store

    root = Store.resolve(store).root
    source = "--store" if store else _source("DDPARITY_HOME")
    settings = [_setting("store", str(root), source, "where trials and jobs are kept"), *_calls(root), *_switches()]
    if gateway:
        settings += _gateway(root)
    if as_json:
        emit_json(Settings(settings=settings))
    else:
        rows = [(each.name, each.source, plain(_shown(each.value))) for each in settings]
        emit(table(("SETTING", "FROM", "VALUE"), rows))


def _setting(name: str, value: Any, source: str, meaning: str) -> Setting:
    return Setting(name=name, value=value, source=source, meaning=meaning)


def _calls(root: Path) -> list[Setting]:
    """Return how the commands that call a gateway find it."""
    from ddparity.gateway._address import TOKEN_VARIABLE, address

    url, source = address(None, root)
    token = "set" if os.environ.get(TOKEN_VARIABLE) else "not set"
    return [
        _setting("url", url, source, "the gateway that submit, jobs, status, logs and cancel call"),
        _setting("token", token, _source(TOKEN_VARIABLE), "what they show the gateway"),
    ]


def _switches() -> list[Setting]:
    colour = "off" if os.environ.get("NO_COLOR") else "on terminals"
    debug = "on" if os.environ.get(DEBUG_VARIABLE) == "1" else "off"
    return [
        _setting("colour", colour, _source("NO_COLOR"), "colour of the words of verdicts"),
        _setting("debug", debug, _source(DEBUG_VARIABLE), "whether an error prints where it was raised"),
    ]


def _source(variable: str) -> str:
    return variable if os.environ.get(variable) else _DEFAULT


def _gateway(root: Path) -> list[Setting]:
    """Return the gateway's settings, as ``ddparity serve`` without an argument would take them."""
    try:
        from ddparity.gateway._settings import Settings
    except ImportError as error:
        raise UsageError(f"--gateway needs {error.name}. Install it: pip install 'ddparity[gateway]'") from error

    values, sources = Settings.load(root), Settings.sources(root)
    return [
        _setting(f"gateway {name}", _safe(getattr(values, name)), sources.get(name, _DEFAULT), field.description or "")
        for name, field in Settings.model_fields.items()
        if name != "store"
    ]


def _safe(value: Any) -> Any:
    """Return a setting fit to be shown: without the user and password of a URL, and paths as text."""
    if isinstance(value, list):
        return [_safe(each) for each in cast("list[Any]", value)]
    return re.sub("//[^/@]*@", "//***@", str(value)) if isinstance(value, str | Path) else value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(cast("list[str]", value)) or "none"
    return "none" if value is None else str(value)
