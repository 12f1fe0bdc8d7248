"""Tokens, scopes and owners: nobody sees or ends another's job, and a gateway that others can reach stands not open."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

import httpx

from ddparity._errors import UsageError
from ddparity.gateway._database import Database, sqlite_url
from ddparity.gateway._tokens import Tokens
from gateway_harness import Gateway

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    store = tmp_path_factory.mktemp("owners") / "store"
    store.mkdir()
    database = Database(sqlite_url(store / "gateway.sqlite"))
    database.migrate()
    tokens = Tokens(database)
    made = Gateway(store, "--paused", "--require-tokens")
    made.tokens = {
        "ann": tokens.create("ann", ["submit"]),
        "bob": tokens.create("bob", ["submit"]),
        "reader": tokens.create("ann", ["read"]),
        "admin": tokens.create("root", ["admin"]),
        "old": tokens.create("ann", ["admin"], days=-1),
        "gone": tokens.create("ann", ["admin"]),
    }
    assert tokens.revoke(made.tokens["gone"].split("_")[1])
    database.close()
    made.start()
    yield made
    made.stop()


def call(gateway: Gateway, who: str | None, method: str, path: str, **options) -> httpx.Response:
    headers = {} if who is None else {"Authorization": f"Bearer {gateway.tokens.get(who, who)}"}
    return gateway.http.request(method, f"{gateway.url}/api/v1/jobs{path}", headers=headers, **options)


def submit(gateway: Gateway, who: str | None, job_id: str) -> httpx.Response:
    params = {"job_id": job_id, "world_size": 1, "batch_size": 1}
    return call(gateway, who, "POST", "/submit", params=params)


@pytest.mark.parametrize("who", [None, "nonsense", "ddp_000000000000_" + "x" * 43, "old", "gone"])
def test_without_a_valid_token_nothing_is_answered(gateway: Gateway, who: str | None) -> None:
    for method, path in (("GET", ""), ("GET", "/status/x"), ("POST", "/x/cancel"), ("GET", "/x/logs/0")):
        answer = call(gateway, who, method, path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert submit(gateway, who, "x").status_code == 401
    assert gateway.http.get(f"{gateway.url}/metrics").status_code == 401
    assert gateway.http.get(f"{gateway.url}/healthz").status_code == 200


def test_owners_do_not_see_each_other(gateway: Gateway) -> None:
    assert submit(gateway, "ann", "mine").status_code == 200
    assert submit(gateway, "bob", "mine").status_code == 200, "another's names are not taken"
    assert submit(gateway, "ann", "only-anns").status_code == 200
    for method, path in (
        ("GET", "/status/only-anns"),
        ("GET", "/only-anns/events"),
        ("GET", "/only-anns/logs"),
        ("GET", "/only-anns/logs/0"),
        ("GET", "/only-anns/logs/0/stream"),
        ("GET", "/only-anns/metrics"),
        ("GET", "/only-anns/verdict"),
        ("POST", "/only-anns/cancel"),
    ):
        answer, nobody = call(gateway, "bob", method, path), call(gateway, "bob", method, path.replace("only", "no"))
        assert (answer.status_code, nobody.status_code) == (404, 404), path
        assert answer.json()["detail"].replace("only-anns", "no-anns") == nobody.json()["detail"]
        named = call(gateway, "bob", method, path, params={"owner": "ann"})
        assert named.status_code == 403
    assert [job["job_id"] for job in call(gateway, "bob", "GET", "").json()["jobs"]] == ["mine"]
    assert call(gateway, "bob", "GET", "", params={"everybody": True}).status_code == 403
    assert call(gateway, "ann", "GET", "/status/only-anns").json()["status"] == "PENDING"


def test_scopes(gateway: Gateway) -> None:
    submit(gateway, "ann", "scoped")
    assert call(gateway, "reader", "GET", "/status/scoped").status_code == 200
    assert submit(gateway, "reader", "more").status_code == 403
    assert call(gateway, "reader", "POST", "/scoped/cancel").status_code == 403
    jobs = call(gateway, "admin", "GET", "", params={"everybody": True}).json()["jobs"]
    assert {"ann"} <= {job["owner"] for job in jobs}
    ended = call(gateway, "admin", "POST", "/scoped/cancel", params={"owner": "ann"}).json()
    assert (ended["status"], ended["error"]) == ("CANCELLED", "cancelled by root")


def test_no_secret_is_kept(gateway: Gateway) -> None:
    rows = sqlite3.connect(gateway.store / "gateway.sqlite").execute("SELECT * FROM tokens").fetchall()
    for token in gateway.tokens.values():
        secret = token.split("_", 2)[2]
        assert secret not in str(rows)
        for path in gateway.store.glob("gateway.sqlite*"):
            assert secret.encode() not in path.read_bytes()


def test_another_address_demands_a_token(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from ddparity.cli import main; main()", "serve", "--store", str(tmp_path / "s")]
    refused = subprocess.run([*command, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "can be reached by others, and there is no token" in refused.stderr
    made = subprocess.run([*command, "--create-token", "ann"], capture_output=True, text=True, timeout=60, check=True)
    assert made.stdout.startswith("ddp_")
    name = made.stdout.split("_")[1]
    ended = subprocess.run([*command, "--revoke-token", name], capture_output=True, text=True, timeout=60, check=True)
    assert "is revoked" in ended.stderr


@pytest.mark.parametrize(("owner", "scopes"), [("ann", ["root"]), ("ann", []), ("a b", ["read"]), ("", ["read"])])
def test_tokens_that_cannot_be_made(tmp_path: Path, owner: str, scopes: list[str]) -> None:
    database = Database(sqlite_url(tmp_path / "x.sqlite"))
    database.migrate()
    with pytest.raises(UsageError):
        Tokens(database).create(owner, scopes)
    database.close()


def test_a_setting_that_is_not_known_names_the_nearest(tmp_path: Path) -> None:
    from ddparity.gateway._settings import Settings

    (tmp_path / "gateway.toml").write_text("max_owner_slot = 3\n")
    with pytest.raises(UsageError, match="Did you mean 'max_owner_slots'"):
        Settings.load(tmp_path)
    (tmp_path / "gateway.toml").write_text("max_owner_slots = 3\nport = 1000\n")
    os.environ["DDPARITY_GATEWAY_PORT"] = "2000"
    try:
        assert (Settings.load(tmp_path).port, Settings.load(tmp_path).max_owner_slots) == (2000, 3)
        assert Settings.load(tmp_path, port=3000).port == 3000
    finally:
        del os.environ["DDPARITY_GATEWAY_PORT"]
    with pytest.raises(UsageError, match="'port' cannot be used"):
        Settings.load(tmp_path, port=70000)
