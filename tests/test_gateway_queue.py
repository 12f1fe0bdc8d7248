"""The laws of the queue, and of the store beneath it."""

import itertools
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from hypothesis import given, settings
from hypothesis import strategies as st

from ddparity.gateway import _slots
from ddparity.gateway._database import Database, sqlite_url
from ddparity.gateway._job import Conflict, JobExists, QueueFull
from ddparity.gateway._jobs import Jobs
from ddparity.gateway._queue import Policy, Waiting, choose
from ddparity.gateway._request import JobRequest
from ddparity.gateway._slots import Slot, Slots
from ddparity.gateway._states import FOLLOWS, State

NOW = 1_000_000.0
JOBS = st.lists(
    st.builds(
        Waiting,
        uid=st.uuids().map(str),
        owner=st.sampled_from(["ann", "bob", "eve"]),
        num_slots=st.integers(0, 6),
        priority=st.integers(-2, 2),
        created=st.floats(NOW - 2000, NOW),
    ),
    max_size=12,
    unique_by=lambda job: job.uid,
)
POLICIES = st.builds(
    Policy,
    max_owner_slots=st.none() | st.integers(1, 6),
    aging_s=st.floats(1, 1000),
    patience_s=st.floats(0, 1000),
)


@given(JOBS, st.integers(0, 8), st.dictionaries(st.sampled_from(["ann", "bob"]), st.integers(0, 4)), POLICIES)
def test_what_is_chosen_fits(waiting, free, used, policy) -> None:
    chosen = choose(waiting, num_free=free, used=used, policy=policy, now=NOW)
    jobs = {job.uid: job for job in waiting}
    assert len(chosen) == len(set(chosen))
    assert sum(jobs[uid].num_slots for uid in chosen) <= free
    if policy.max_owner_slots is not None:
        for owner in ("ann", "bob", "eve"):
            more = sum(jobs[uid].num_slots for uid in chosen if jobs[uid].owner == owner)
            assert more == 0 or used.get(owner, 0) + more <= policy.max_owner_slots


@given(JOBS, st.integers(0, 8), POLICIES, st.randoms())
def test_the_order_in_which_the_queue_is_given_does_not_matter(waiting, free, policy, random) -> None:
    shuffled = list(waiting)
    random.shuffle(shuffled)
    first = choose(waiting, num_free=free, used={}, policy=policy, now=NOW)
    assert first == choose(shuffled, num_free=free, used={}, policy=policy, now=NOW)


@given(JOBS, POLICIES)
def test_with_room_for_all_all_start(waiting, policy) -> None:
    policy = Policy(aging_s=policy.aging_s, patience_s=policy.patience_s)
    assert len(choose(waiting, num_free=100, used={}, policy=policy, now=NOW)) == len(waiting)


def job(uid: str, owner: str = "ann", slots: int = 1, priority: int = 0, waited: float = 0.0) -> Waiting:
    return Waiting(uid=uid, owner=owner, num_slots=slots, priority=priority, created=NOW - waited)


def order(*jobs: Waiting, free: int = 1, used: dict[str, int] | None = None, **policy) -> list[str]:
    return choose(jobs, num_free=free, used=used or {}, policy=Policy(**policy), now=NOW)


def test_priority_then_share_then_age() -> None:
    assert order(job("young", waited=1), job("old", waited=2)) == ["old"]
    assert order(job("old", waited=9), job("high", priority=1)) == ["high"]
    assert order(job("ann", waited=9), job("bob", owner="bob"), used={"ann": 3}) == ["bob"]
    assert order(job("a1", waited=3), job("a2", waited=2), job("b1", owner="bob"), free=2) == ["a1", "b1"]


def test_a_job_that_waited_long_gains_priority() -> None:
    assert order(job("low", priority=-1, waited=1300), job("high", priority=0), aging_s=600.0) == ["low"]


def test_small_jobs_pass_a_large_one_until_its_patience_ends() -> None:
    large, small = job("large", slots=4, waited=50), job("small")
    assert order(large, small, free=2, patience_s=60.0) == ["small"]
    assert order(large, small, free=2, patience_s=40.0) == []
    assert order(large, small, free=5, patience_s=40.0) == ["large", "small"]


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(1, 4))
def test_no_large_job_starves(slots, length) -> None:
    """However many small ones keep coming, a job that needs every slot starts."""
    policy, now = Policy(patience_s=10.0, aging_s=1e9), NOW
    waiting = [Waiting(uid="large", owner="ann", num_slots=slots, priority=0, created=now)]
    running: list[float] = []
    for tick in range(100):
        now = NOW + tick
        running = [end for end in running if end > now]
        waiting.append(Waiting(uid=f"small-{tick}", owner="bob", num_slots=1, priority=0, created=now))
        for uid in choose(waiting, num_free=slots - len(running), used={}, policy=policy, now=now):
            if uid == "large":
                return
            running.append(now + length)
            waiting = [each for each in waiting if each.uid != uid]
    raise AssertionError("it never started")


@pytest.fixture
def sqlite(tmp_path):
    made = Database(sqlite_url(tmp_path / "jobs.sqlite"))
    made.migrate()
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    url = sqlite_url(tmp_path / "jobs.sqlite") if request.param == "sqlite" else request.getfixturevalue("postgres")()
    made = Database(url)
    made.migrate()
    yield made
    made.close()


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    """Return a function that makes an empty database on a real server and returns its URL."""
    pytest.importorskip("psycopg")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    programs, root = found[-1].parent, Path(tempfile.mkdtemp(prefix="ddparity-pg-"))
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if user:
        shutil.chown(root, "postgres")
    data, options = root / "data", f"-c listen_addresses= -c unix_socket_directories={root} -c fsync=off"

    def run(*command):
        return subprocess.run([*user, *command], check=True, capture_output=True, timeout=60, cwd=root)

    run(str(programs / "initdb"), "-D", str(data), "-U", "ddparity", "--auth=trust", "--no-sync")
    run(str(programs / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(root / "log"), "-w", "start")
    names = itertools.count()

    def make() -> str:
        name = f"jobs{next(names)}"
        run(str(programs / "createdb"), "-h", str(root), "-U", "ddparity", name)
        return f"postgresql+psycopg://ddparity@/{name}?host={root}"

    yield make
    run(str(programs / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
    shutil.rmtree(root)


def request(name: str, world_size: int = 1, **settings) -> JobRequest:
    return JobRequest(job_id=name, world_size=world_size, batch_size=1, **settings)


def enter(jobs: Jobs, name: str, owner: str = "ann", world_size: int = 1):
    return jobs.submit(request(name, world_size), owner, num_slots=world_size, max_owner_queued=99, max_queued=99)


def test_the_migrations_make_the_tables_that_the_code_has(database) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from ddparity.gateway._tables import Base

    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"render_as_batch": True})
        assert compare_metadata(context, Base.metadata) == []


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_only_transitions_that_exist_are_made(sqlite, before, after) -> None:
    jobs = Jobs(sqlite)
    found = enter(jobs, "x")
    path = {State.PENDING: [], State.STARTING: [State.STARTING], State.RUNNING: [State.STARTING, State.RUNNING]}
    for state in path.get(before, [State.STARTING, before]):
        found = jobs.change(found, state)
    if after in FOLLOWS[before]:
        assert jobs.change(found, after).state is after
    else:
        with pytest.raises(AssertionError):
            jobs.change(found, after)


def test_a_change_of_what_changed_meanwhile_is_refused(database) -> None:
    jobs = Jobs(database)
    found = enter(jobs, "x")
    jobs.change(found, State.STARTING)
    with pytest.raises(Conflict):
        jobs.change(found, State.CANCELLED)
    assert [event.kind for event in jobs.events(found.uid)] == ["PENDING", "STARTING"]


def test_slots_come_with_the_start_and_go_with_the_end(database) -> None:
    jobs, slots = Jobs(database), Slots(database)
    slots.declare([Slot(name=f"cpu{n}", kind="cpu", position=n) for n in range(3)])
    one, two = enter(jobs, "one", world_size=2), enter(jobs, "two", world_size=2)
    started = jobs.start(one, ["cpu0", "cpu1"])
    assert started is not None
    assert jobs.start(two, ["cpu1", "cpu2"]) is None, "a slot is taken"
    assert jobs.by_uid(two.uid).state is State.PENDING
    assert [slot.name for slot in slots.free()] == ["cpu2"]
    assert slots.used() == {"ann": 2}
    slots.declare([])
    assert [slot.name for slot in slots.of(one.uid)] == ["cpu0", "cpu1"], "what is in use stays"
    jobs.change(started, State.FAILED)
    assert [slot.name for slot in slots.free()] == ["cpu0", "cpu1"]


@pytest.mark.parametrize(("visible", "names"), [(None, ["gpu0", "gpu1"]), ("1", ["gpu1"]), ("0,7", ["gpu0"]), ("", [])])
def test_gpus_are_slots_where_there_are_any(tmp_path, monkeypatch, visible, names) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(_slots, "NVIDIA", tmp_path)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = [slot.name for slot in _slots.found_slots(None)]
    assert found == names if names else all(name.startswith("cpu") for name in found)
    assert [slot.name for slot in _slots.found_slots(2)] == ["cpu0", "cpu1"], "a number that is given goes first"


def test_one_name_is_one_job_whoever_is_first(database) -> None:
    jobs = Jobs(database)
    outcomes: list[str] = []

    def go() -> None:
        try:
            enter(jobs, "same")
            outcomes.append("made")
        except JobExists:
            outcomes.append("refused")

    threads = [threading.Thread(target=go) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made", *["refused"] * 19]


def test_a_full_queue_takes_no_more(database) -> None:
    jobs = Jobs(database)
    for number in range(3):
        jobs.submit(request(f"j{number}"), "ann", num_slots=1, max_owner_queued=3, max_queued=4)
    with pytest.raises(QueueFull, match="3 of your jobs"):
        jobs.submit(request("j3"), "ann", num_slots=1, max_owner_queued=3, max_queued=4)
    jobs.submit(request("j3"), "bob", num_slots=1, max_owner_queued=3, max_queued=4)
    with pytest.raises(QueueFull, match="4 jobs wait"):
        jobs.submit(request("j4"), "bob", num_slots=1, max_owner_queued=3, max_queued=4)


def test_thousands_of_waiting_jobs_are_looked_through_quickly(database) -> None:
    from sqlalchemy import insert

    from ddparity.gateway._tables import JobRow

    rows = [
        {
            "uid": f"{n:032x}", "job_id": f"j{n}", "owner": f"o{n % 50}", "state": "PENDING", "version": 0,
            "engine": "local", "request": request(f"j{n}").model_dump(), "num_slots": 1, "priority": 0, "created": n,
        }
        for n in range(5000)
    ]  # fmt: skip
    with database.write() as connection:
        connection.execute(insert(JobRow), rows)
    start = time.process_time()
    waiting = Slots(database).waiting()
    chosen = choose(waiting, num_free=8, used={}, policy=Policy(), now=NOW)
    took = time.process_time() - start
    assert (len(waiting), len(chosen)) == (5000, 8)
    assert len({job.owner for job in waiting if job.uid in chosen}) == 8
    assert took < 1.0
