"""The calls: to the letter, one error body, nothing of the inside, many callers at once."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi")

import httpx

from ddparity.gateway._shield import Rates
from gateway_harness import Gateway

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("api") / "store", "--paused").start()
    yield made
    made.stop()


def submit(gateway: Gateway, **params: object) -> httpx.Response:
    return gateway.http.post(f"{gateway.url}/api/v1/jobs/submit", params=params)


def test_submit_to_the_letter(gateway: Gateway) -> None:
    answer = submit(gateway, job_id="job_001", world_size=2, batch_size=32)
    assert answer.status_code == 200
    body = answer.json()
    assert {**body, "message": None} == {"code": 200, "message": None, "job_id": "job_001", "status": "PENDING"}
    assert isinstance(body["message"], str)
    again = submit(gateway, job_id="job_001", world_size=2, batch_size=32)
    assert (again.status_code, "exists already" in again.json()["detail"]) == (400, True)


def test_status_to_the_letter(gateway: Gateway) -> None:
    submit(gateway, job_id="job_002", world_size=2, batch_size=32)
    body = gateway.status("job_002")
    assert {name: body[name] for name in ("job_id", "status", "metrics", "error")} == {
        "job_id": "job_002",
        "status": "PENDING",
        "metrics": {},
        "error": None,
    }
    unknown = gateway.get("/status/nobody")
    assert unknown.status_code == 404
    assert isinstance(unknown.json()["detail"], str)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"job_id": "x", "world_size": 0, "batch_size": 1}, "world_size"),
        ({"job_id": "x", "world_size": "two", "batch_size": 1}, "world_size"),
        ({"job_id": "x", "world_size": "1.5", "batch_size": 1}, "world_size"),
        ({"job_id": "x", "world_size": 1, "batch_size": -3}, "batch_size"),
        ({"job_id": "x", "world_size": 1}, "batch_size"),
        ({"job_id": "../x", "world_size": 1, "batch_size": 1}, "job_id"),
        ({"job_id": "", "world_size": 1, "batch_size": 1}, "job_id"),
        ({"job_id": "status", "world_size": 1, "batch_size": 1}, "job_id"),
        ({"job_id": "x" * 129, "world_size": 1, "batch_size": 1}, "job_id"),
        ({"job_id": "x", "world_size": 1000, "batch_size": 1}, "world_size"),
        ({"world_size": 1, "batch_size": 1}, "job_id"),
    ],
)
def test_values_that_cannot_be_used(gateway: Gateway, params: dict[str, object], field: str) -> None:
    answer = submit(gateway, **params)
    assert answer.status_code == 422
    body = answer.json()
    assert set(body) == {"code", "detail", "errors"}
    assert field in body["detail"]
    assert isinstance(body["detail"], str)


@pytest.mark.parametrize(
    "body",
    [
        {"surprise": 1},
        {"world_size": True},
        {"world_size": "2"},
        {"learning_rate": 0},
        {"args": "--lr 1"},
        {"args": ["a\0b"]},
        {"env": {"LD_PRELOAD": "/tmp/x.so"}},
        {"env": {"PATH": "/tmp"}},
        {"env": {"A=B": "x"}},
        {"nodes": 2},
        {"engine": "slurm"},
        {"engine": "kubernetes"},
        {"priority": 1000},
        {"timeout_s": -1},
        {"gate": "maybe"},
        {"max_restarts": 999},
    ],
)
def test_settings_that_cannot_be_used(gateway: Gateway, body: dict[str, object]) -> None:
    answer = (
        gateway.post("x", **body)
        if "world_size" not in body
        else gateway.http.post(f"{gateway.url}/api/v1/jobs/submit", json={"job_id": "x", "batch_size": 1, **body})
    )
    assert answer.status_code == 422, answer.text
    assert set(answer.json()) == {"code", "detail", "errors"}


@pytest.mark.parametrize(
    "entry",
    [
        "../gateway_harness.py",
        "../../conftest.py",
        "/etc/passwd",
        "/etc/hostname.py",
        "./../gateway/../../conftest.py",
        "nothing.py",
        "",
        "a\0b.py",
        "digits.py",
        "x" * 900 + ".py",
    ],
)
def test_no_entry_leads_out_of_the_roots(gateway: Gateway, entry: str) -> None:
    answer = gateway.post("x", entry=entry)
    assert answer.status_code == 422
    assert "root:x" not in answer.text


def test_a_link_out_of_a_root_is_no_entry(tmp_path) -> None:
    from ddparity.gateway._entries import EntryRefused, find_entry
    from ddparity.gateway._request import JobRequest

    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
        (folder / "train.py").write_text("")
    (root / "link.py").symlink_to(outside / "train.py")
    (root / "folder").symlink_to(outside)
    (root / "inner.py").symlink_to(root / "train.py")
    (root / "loop.py").symlink_to(root / "loop.py")
    for name, allowed in {"train.py": True, "inner.py": True, "link.py": False, "folder/train.py": False}.items():
        request = JobRequest(job_id="x", world_size=1, batch_size=1, entry=name)
        if allowed:
            assert find_entry(request, [root]).words == (str(root.resolve() / "train.py"),)
        else:
            with pytest.raises(EntryRefused, match="neither a workload"):
                find_entry(request, [root])
    with pytest.raises(EntryRefused):
        find_entry(JobRequest(job_id="x", world_size=1, batch_size=1, entry="loop.py"), [root])
    absolute = JobRequest(job_id="x", world_size=1, batch_size=1, entry=str(root / "train.py"))
    assert find_entry(absolute, [root]).words == (str(root.resolve() / "train.py"),)


def test_bodies_that_are_no_json_or_too_large(gateway: Gateway) -> None:
    url = f"{gateway.url}/api/v1/jobs/submit"
    headers = {"Content-Type": "application/json"}
    assert gateway.http.post(url, content=b"{", headers=headers).status_code == 422
    assert gateway.http.post(url, content=b"[1]", headers=headers).status_code == 422
    assert gateway.http.post(url, content=b'"x"', headers=headers).status_code == 422
    assert gateway.http.post(url, content=b"\xff\xfe", headers=headers).status_code == 422
    assert gateway.http.post(url, content=b" " * 300_000, headers=headers).status_code == 413

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 10_000

    assert gateway.http.post(url, content=endless(), headers=headers).status_code == 413


def test_another_sites_page_changes_nothing(gateway: Gateway) -> None:
    params = {"job_id": "evil", "world_size": 1, "batch_size": 1}
    url = f"{gateway.url}/api/v1/jobs/submit"
    for headers in (
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "null"},
    ):
        assert gateway.http.post(url, params=params, headers=headers).status_code == 403
    assert gateway.http.get(f"{gateway.url}/api/v1/jobs", headers={"Host": "evil.example"}).status_code == 421
    assert gateway.http.post(url, params=params, headers={"Origin": gateway.url}).status_code == 200


def test_security_headers_stand_on_every_answer(gateway: Gateway) -> None:
    for path in ("/healthz", "/nowhere", "/api/v1/jobs"):
        headers = gateway.http.get(f"{gateway.url}{path}").headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers


def test_lists_are_filtered_and_paged(gateway: Gateway) -> None:
    for number in range(7):
        submit(gateway, job_id=f"page-{number}", world_size=1, batch_size=1)
    seen: list[str] = []
    cursor = None
    while True:
        params = {"prefix": "page-", "limit": 3, "status": "PENDING"} | ({"cursor": cursor} if cursor else {})
        page = gateway.get("", **params).json()
        seen += [job["job_id"] for job in page["jobs"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [f"page-{number}" for number in reversed(range(7))]
    assert gateway.get("", status="COMPLETED").json()["jobs"] == []
    assert gateway.get("", status="WHAT").status_code == 422
    assert gateway.get("", cursor="nonsense").status_code == 422


def test_events_are_in_order(gateway: Gateway) -> None:
    submit(gateway, job_id="events", world_size=1, batch_size=1)
    gateway.http.post(f"{gateway.url}/api/v1/jobs/events/cancel")
    events = gateway.get("/events/events").json()["events"]
    assert [event["kind"] for event in events] == ["PENDING", "cancel", "CANCELLED"]
    later = gateway.get("/events/events", after=events[0]["id"]).json()["events"]
    assert later == events[1:]


def test_fifty_clients_at_once(gateway: Gateway) -> None:
    """The same and different names: one job each, no 5xx."""
    counts: Counter[int] = Counter()
    accepted: Counter[str] = Counter()
    lock = threading.Lock()

    def client(number: int) -> None:
        with httpx.Client(timeout=60, trust_env=False) as http:
            for round_ in range(6):
                name = f"shared-{round_}" if round_ % 2 else f"own-{number}-{round_}"
                params = {"job_id": name, "world_size": 1, "batch_size": 1}
                code = http.post(f"{gateway.url}/api/v1/jobs/submit", params=params).status_code
                with lock:
                    counts[code] += 1
                    accepted[name] += code == 200

    threads = [threading.Thread(target=client, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(counts) == {200, 400}
    assert set(accepted.values()) == {1}
    assert counts[200] == 50 * 3 + 3


def test_a_caller_may_make_so_many_requests_a_second() -> None:
    rates = Rates(5.0)
    assert [rates.take("ann") for _ in range(6)] == [True] * 5 + [False]
    assert rates.take("bob"), "each has a rate of its own"
    time.sleep(0.3)
    assert [rates.take("ann"), rates.take("ann")] == [True, False]
    slow = Rates(0.5)
    assert [slow.take("ann"), slow.take("ann")] == [True, False]


def test_what_is_unexpected_tells_nothing_of_the_inside(tmp_path, monkeypatch, caplog) -> None:
    from ddparity.gateway._settings import Settings
    from ddparity.gateway.app import create_app

    def fail(*_args: object) -> None:
        raise RuntimeError("/a/secret/path")

    app = create_app(Settings.load(tmp_path))
    monkeypatch.setattr(app.state.service.jobs, "find", fail)

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await http.get("/api/v1/jobs/status/x")

    answer = asyncio.run(call())
    assert (answer.status_code, set(answer.json())) == (500, {"code", "detail", "errors"})
    assert "secret" not in answer.text
    assert "content-security-policy" in answer.headers
    number = answer.json()["detail"].split()[-1].rstrip(".")
    assert number in caplog.text
    assert "/a/secret/path" in caplog.text


def test_prometheus_and_health(gateway: Gateway) -> None:
    text = gateway.http.get(f"{gateway.url}/metrics").text
    assert 'ddparity_jobs{state="PENDING"}' in text
    assert 'ddparity_slots{use="free"} 8.0' in text
    assert gateway.http.get(f"{gateway.url}/healthz").json()["status"] == "ok"
