"""Taking names of people, machines and places, and secrets, out of texts; each name becomes one placeholder."""

import getpass
import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ddparity.trace import Trial

_GENERIC_USERS = {"root", "user", "users", "admin", "ubuntu", "nobody", "test", "jovyan", "runner", "home"}
_GENERIC_HOSTS = {"localhost", "host", "vm", "node", "rank", "master", "worker"}
_SECRET_WORD = r"(?:token|secret|passw(?:or)?d|passphrase|api[-_]?key|access[-_]?key|private[-_]?key|credential|auth)"
_SECRETS = (
    re.compile(r"\b(?:sk|pk|rk)[-_](?:live|test|proj|ant)?[-_]?[A-Za-z0-9_-]{16,}"),
    re.compile(r"\b(?:hf|ghp|gho|ghs|github_pat|glpat|xox[abprs]|dckr_pat|pypi|npm)[-_][A-Za-z0-9_-]{10,}"),
    re.compile(r"\bA(?:KIA|SIA)[A-Z0-9]{12,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(rf"(?i)(?<=[-_.\s\"'?&])[\w.-]*{_SECRET_WORD}[\w.-]*[=:]\s*[^\s\"',&]+"),
    re.compile(rf"(?i)^[\w.-]*{_SECRET_WORD}[\w.-]*[=:]\s*[^\s\"',&]+"),
)
_BY_FORM = 6
"""The first of them know a secret by its form, the rest by the word before it."""
_SECRET_FLAG = re.compile(rf"(?i)--?[\w-]*{_SECRET_WORD}[\w-]*\Z")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_ABSOLUTE = re.compile(r"(?<![\w<>./])/(?:[^\s:;,'\"/<>]+/)+(?=[^\s/]*)")
_NOT_OF_THE_SYSTEM = re.compile(rf"(?!/(?:proc|sys|dev|etc|usr|bin|lib|tmp|var/tmp)/){_ABSOLUTE.pattern}")
_BELOW = re.compile(r"(<(?:HOME|CWD)(?:-\d+)?>)/(?:[^\s:;,'\"/<>]+/)+")
_KEPT_TAIL = re.compile(r"(?:site-packages|lib/python3\.\d+)/.*\Z")
_HIDDEN = "<SECRET>"
_SHORT = 4
"""Names up to this length occur in any bytes by chance."""


class Scrubber:
    """Replaces what tells who, where and with which keys.

    Args:
        trials: The trials whose texts will be scrubbed; their hosts, folders and homes are known from them.
    """

    def __init__(self, trials: Iterable[Trial]) -> None:
        self._places: dict[str, str] = {}
        self._words: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        hosts: list[str] = [socket.gethostname()]
        users = {os.environ.get("USER", ""), os.environ.get("LOGNAME", ""), _user()}
        homes = {os.environ.get("HOME", ""), str(Path.home())}
        for number, trial in enumerate(trials):
            facts = trial.facts
            self._places.setdefault(facts.cwd, "<CWD>" if number == 0 else f"<CWD-{number}>")
            homes |= {
                match[0] for match in re.finditer(r"/(?:home|Users)/[^/\s:]+", " ".join([facts.cwd, *facts.command]))
            }
            hosts += [rank.facts.hostname for rank in trial.ranks]
            hosts += [rank.facts.master.rpartition(":")[0] for rank in trial.ranks if rank.facts.master]
        for home in sorted(homes - {"", "/"}):
            self._places.setdefault(home, "<HOME>")
            users.add(Path(home).name)
        for user in sorted(users):
            if len(user) > 2 and user.lower() not in _GENERIC_USERS:
                self._words[user] = "<USER>"
        for host in dict.fromkeys(hosts):
            for name in {host, host.partition(".")[0]} if not _is_address(host) else set[str]():
                if len(name) > 2 and name.lower() not in _GENERIC_HOSTS:
                    self._words.setdefault(name, f"<HOST-{len(set(self._words.values())) + 1}>")
        self._word = re.compile(
            "|".join(
                rf"(?<![A-Za-z0-9]){re.escape(w)}(?![A-Za-z0-9])" for w in sorted(self._words, key=len, reverse=True)
            )
            or r"(?!)"
        )

    @property
    def names(self) -> list[str]:
        """What is replaced and long enough to be looked for in bytes: none of it may be found in what is written."""
        places = {place for place in self._places if place.count("/") > 1}
        return sorted(name for name in {*self._words, *places} if len(name) > _SHORT)

    def text(self, text: str) -> str:
        """Return a text without secrets, names and places."""
        return self._unnamed(text, _SECRETS, _ABSOLUTE)

    def plain(self, text: str) -> str:
        """Return a piece of source likewise; a word before ``=`` or ``:`` is no secret there, only what looks so is.

        Paths of the system stay: a program that reads ``/proc`` needs them, and they are the same everywhere.
        """
        return _BELOW.sub(r"\1/", self._unnamed(text, _SECRETS[:_BY_FORM], _NOT_OF_THE_SYSTEM))

    def _unnamed(self, text: str, secrets: tuple[re.Pattern[str], ...], paths: re.Pattern[str]) -> str:
        for pattern in secrets:
            text = pattern.sub(_HIDDEN, text)
        for place in sorted(self._places, key=len, reverse=True):
            text = re.sub(rf"{re.escape(place)}(?=/|\b|\Z)", self._places[place], text)
        text = paths.sub(_shortened, text)
        text = _ADDRESS.sub(self._address, text)
        return self._word.sub(lambda match: self._words[match[0]], text)

    def host(self, name: str) -> str:
        """Return the placeholder of a host, also of one that bears a word of the language as its name."""
        return self._words.setdefault(name, f"<HOST-{len(set(self._words.values())) + 1}>")

    def command(self, words: list[str]) -> list[str]:
        """Return a command without secrets: neither in a word nor in the word after a flag that asks for one."""
        found: list[str] = []
        for word in words:
            asked = bool(found) and _SECRET_FLAG.match(words[len(found) - 1]) is not None and not word.startswith("-")
            found.append(_HIDDEN if asked else self.text(word))
        return found

    def value(self, value: Any) -> Any:
        """Return nested lists and dictionaries with every text scrubbed, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            is_command = bool(value) and all(isinstance(item, str) for item in value)
            return self.command(value) if is_command else [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key) if isinstance(key, str) else key: self.value(item) for key, item in value.items()}
        return value

    def _address(self, match: re.Match[str]) -> str:
        try:
            if ipaddress.ip_address(match[0]).is_loopback or match[0] == "0.0.0.0":
                return match[0]
        except ValueError:  # a version number
            return match[0]
        return self._addresses.setdefault(match[0], f"<IP-{len(self._addresses) + 1}>")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return ""


def _is_address(host: str) -> bool:
    return bool(_ADDRESS.fullmatch(host)) or ":" in host


def _shortened(match: re.Match[str]) -> str:
    """Keep of a path outside the known places what is of a library, and no folder of anybody's otherwise."""
    tail = _KEPT_TAIL.search(match[0])
    return f"<PATH>/{tail[0]}" if tail is not None else "<PATH>/"
