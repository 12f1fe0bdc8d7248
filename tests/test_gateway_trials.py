"""Trials, comparisons and ladders over HTTP: who sees which, what is answered, and what attacks come to."""

import asyncio
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("fastapi")

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

import gateway_trials as made
from ddparity.gateway._database import Database, sqlite_url
from ddparity.gateway._errors import Refused
from ddparity.gateway._judging import Judging, fingerprint
from ddparity.gateway._tokens import Tokens
from ddparity.trace import TrialStatus
from ddparity.trials import Store
from ddparity.trials._ladders import LadderResult, Ladders, RungResult
from gateway_harness import Gateway

pytestmark = pytest.mark.timeout(180)
BROWSER = {"Accept": "text/html"}
BELOW = ("", "/check", "/memory", "/communication")
"""What the API has below a trial."""


class Case:
    """A gateway that demands tokens, and a store with trials of ann's, of bob's, and of nobody's job."""

    def __init__(self, store: Path) -> None:
        self.store = store
        store.mkdir(parents=True)
        database = Database(sqlite_url(store / "gateway.sqlite"))
        database.migrate()
        tokens = Tokens(database)
        self.tokens = {
            "ann": tokens.create("ann", ["submit"]),
            "bob": tokens.create("bob", ["submit"]),
            "admin": tokens.create("root", ["admin"]),
        }
        database.close()
        self.gateway = Gateway(store, "--paused", "--require-tokens").start()
        for owner in ("ann", "bob"):
            params = {"job_id": f"{owner}s", "world_size": 2, "batch_size": 1}
            answer = self.call(owner, "/api/v1/jobs/submit", method="POST", params=params)
            assert answer.status_code == 200, answer.text
        self.control = made.write(store, made.CONTROL, "gate-aaaaaaaaaaaa-bbbbbbbb")
        self.repeat = made.write(store, made.CONTROL, "gate-aaaaaaaaaaaa-bbbbbbbb.repeat")
        training = made.give(store, "anns", "gate-aaaaaaaaaaaa-bbbbbbbb")
        self.training = made.write(store, made.SUMMED, training, against=self.control, command=["python", made.EVIL])
        self.bobs = made.write(store, made.SUMMED, made.give(store, "bobs", "gate-cccccccccccc-dddddddd"))
        self.nobodys = made.write(store, made.CONTROL, "by-hand")
        self.mine = [self.training, self.repeat, self.control]

    def call(self, who: str, path: str, *, method: str = "GET", **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[who]}", **options.pop("headers", {})}
        return self.gateway.http.request(method, f"{self.gateway.url}{path}", headers=headers, **options)

    def json(self, who: str, path: str, **options: Any) -> Any:
        answer = self.call(who, f"/api/v1{path}", **options)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    found = Case(tmp_path_factory.mktemp("trials") / "store")
    yield found
    found.gateway.stop()


def ddparity(case: Case, *arguments: str) -> Any:
    code = "from ddparity.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments, "--store", str(case.store), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, timeout=60, check=False).stdout)


# -- whose ------------------------------------------------------------------------------------------------------------


def test_an_owner_sees_the_trials_of_his_jobs_and_an_admin_all(case: Case) -> None:
    assert [each["id"] for each in case.json("ann", "/trials")["trials"]] == case.mine
    assert [each["id"] for each in case.json("bob", "/trials")["trials"]] == [case.bobs]
    every = [each["id"] for each in case.json("admin", "/trials")["trials"]]
    assert every == sorted([*case.mine, case.bobs, case.nobodys], reverse=True)
    (mine, *_) = case.json("ann", "/trials")["trials"]
    assert mine["job"] == {"job_id": "anns", "owner": "ann"}


def test_somebody_elses_trial_is_answered_as_none_at_all(case: Case) -> None:
    nobody = made.new_id("nobody")
    for other in (case.bobs, case.nobodys):
        for root, below in (("/api/v1", BELOW), ("", made.PAGES)):
            for part in below:
                for headers in ({}, BROWSER):
                    hers = case.call("ann", f"{root}/trials/{other}{part}", headers=headers)
                    none = case.call("ann", f"{root}/trials/{nobody}{part}", headers=headers)
                    assert (hers.status_code, none.status_code) == (404, 404)
                    assert hers.text.replace(other, nobody) == none.text
        for pair in ({"control": case.control, "candidate": other}, {"control": other, "candidate": case.training}):
            for path in ("/api/v1/compare", "/compare"):
                hers = case.call("ann", path, params=pair)
                none = case.call("ann", path, params={k: nobody if v == other else v for k, v in pair.items()})
                assert (hers.status_code, none.status_code) == (404, 404)
                assert hers.text.replace(other, nobody) == none.text


def test_what_a_trial_was_held_against_is_listed_as_far_as_one_may_see_it(case: Case) -> None:
    for control in (case.control, case.nobodys):
        found = ddparity(case, "compare", control, case.training)
        assert found["layers"]["numerics"]["status"] == "DEVIATES"
    of_ann = case.json("ann", f"/trials/{case.training}")["comparisons"]
    assert [each["control"] for each in of_ann] == [case.control]
    assert len(case.json("admin", f"/trials/{case.training}")["comparisons"]) == 2
    assert case.call("admin", f"/trials/{case.training}").text.count("✗ DEVIATES") >= 2


def test_a_ladder_is_the_admins(case: Case) -> None:
    kept = Ladders(Store(case.store))
    rung = RungResult(number=0, label="0", title="one process", status="PASS", trial=case.control, reason=made.EVIL)
    with kept.climbing("climb"):
        kept.write(LadderResult(name="climb", status="RUNNING", rungs=[rung], again="ddparity ladder"))
        assert case.json("admin", "/ladders/climb")["status"] == "RUNNING"
        assert 'data-refresh="2"' in case.call("admin", "/ladders/climb").text
    (kept.folder / "bad.json").write_text("{")
    listed = case.json("admin", "/ladders")
    assert ([each["name"] for each in listed["ladders"]], len(listed["damaged"])) == (["climb"], 1)
    assert str(case.store) not in listed["damaged"][0]
    assert case.json("admin", "/ladders/climb") == ddparity(case, "ladders", "climb")
    page = case.call("admin", "/ladders/climb").text
    assert "INTERRUPTED" in page
    assert made.EVIL not in page
    assert f'href="/trials/{case.control}"' in page
    assert case.call("admin", "/ladders/bad").status_code == 422
    assert case.json("ann", "/ladders") == {"schema": 1, "ladders": [], "damaged": [], "next": None}
    for path in ("/api/v1/ladders/climb", "/ladders/climb"):
        hers, none = case.call("ann", path), case.call("ann", path.replace("climb", "nobod"))
        assert (hers.status_code, none.status_code) == (404, 404)
        assert hers.text.replace("climb", "nobod") == none.text
    assert "belongs to the store" in case.call("ann", "/ladders").text


# -- what is answered -------------------------------------------------------------------------------------------------


def test_the_twins_are_the_documents_of_the_command_line(case: Case) -> None:
    shown = ddparity(case, "trials", "show", case.training)
    found = case.json("ann", f"/trials/{case.training}")
    assert {name: found[name] for name in ("schema", "trial", "ranks", "damaged")} == {
        name: shown[name] for name in ("schema", "trial", "ranks", "damaged")
    }
    pair = {"control": case.control, "candidate": case.training}
    assert case.json("ann", "/compare", params=pair) == ddparity(
        case, "compare", case.control, case.training, "--no-save"
    )
    check = case.json("ann", f"/trials/{case.training}/check")
    assert {name: layer["status"] for name, layer in check["layers"].items()} == {
        "numerics": "NOT_TESTED",
        "data": "NOT_TESTED",
        "memory": "DEVIATES",
        "communication": "PASS",
    }
    memory = case.json("ann", f"/trials/{case.training}/memory")
    assert (memory["layer"]["status"], len(memory["memory"]["lines"])) == ("DEVIATES", 2)
    calls = case.json("ann", f"/trials/{case.training}/communication")
    assert [(row["op"], row["fewest"], row["most"]) for row in calls["calls"]["rows"]] == [("all_reduce", 6, 6)]
    assert len(calls["timeline"]["rows"]) == 2


def test_every_page_names_its_twin(case: Case) -> None:
    pair = f"control={case.control}&candidate={case.training}"
    pages = {
        "/trials?prefix=gate": "/api/v1/trials?prefix=gate",
        f"/compare?{pair}": f"/api/v1/compare?{pair}",
        "/ladders": "/api/v1/ladders",
        **{f"/trials/{case.training}{part}": f"/api/v1/trials/{case.training}{part}" for part in made.PAGES},
    }
    for page, twin in pages.items():
        found = case.call("ann", page)
        assert found.status_code == 200, page
        assert f'href="{twin.replace("&", "&amp;")}"' in found.text
        assert case.call("ann", twin).headers["content-type"] == "application/json"


def test_nothing_of_a_trace_is_markup(case: Case) -> None:
    for path in (f"/trials/{case.training}", "/trials", f"/trials/{case.training}/memory", "/compare"):
        page = case.call("ann", path).text
        assert made.EVIL not in page
        assert "<script>" not in page
        assert " style=" not in page
    assert "&lt;script&gt;" in case.call("ann", f"/trials/{case.training}").text


def test_lists_come_in_pages(case: Case) -> None:
    first = case.json("ann", "/trials", params={"limit": 2})
    assert [each["id"] for each in first["trials"]] == case.mine[:2]
    rest = case.json("ann", "/trials", params={"limit": 2, "cursor": first["next"]})
    assert ([each["id"] for each in rest["trials"]], rest["next"]) == (case.mine[2:], None)
    named = case.json("ann", "/trials", params={"prefix": "gate-"})["trials"]
    assert [each["id"] for each in named] == case.mine[1:]
    assert case.json("ann", "/trials", params={"status": "FAILED"})["trials"] == []
    for cursor in ("../x", "x" * 200, "a\0", ""):
        assert case.call("ann", "/api/v1/trials", params={"cursor": cursor}).status_code == 422
    assert case.call("ann", "/api/v1/ladders", params={"cursor": "-1"}).status_code == 422


def test_without_two_trials_the_page_asks_which(case: Case) -> None:
    page = case.call("ann", "/compare", params={"candidate": case.training}).text
    assert f'<option value="{case.training}" selected>' in page
    assert case.bobs not in page
    assert case.call("ann", "/api/v1/compare", params={"candidate": case.training}).status_code == 422


# -- attacks ----------------------------------------------------------------------------------------------------------

WRONG = [
    "..", "../..", "..%2f..%2fgateway.sqlite", "%2e%2e", "%00", "a%00b", "x" * 5000, ".hidden", "private", "-",
    "%ff%fe", "%F0%9F%92%A9", "trials", "con", "a b", "a/b/c", "%0d%0aX:%20y", "20261130-100000001-x-00aa%00",
]  # fmt: skip


def raw(case: Case, who: str, path: str, **headers: str) -> tuple[int, bytes]:
    """Ask for a path to the letter: clients take the dots out of one before they send it."""
    host = httpx.URL(case.gateway.url)
    connection = http.client.HTTPConnection(host.host, host.port, timeout=30)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {case.tokens[who]}", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("wrong", WRONG)
def test_ids_that_are_none(case: Case, wrong: str) -> None:
    sent = wrong.replace(" ", "%20")
    for who in ("ann", "admin"):
        for path in (f"/api/v1/trials/{sent}", f"/api/v1/trials/{sent}/memory", f"/api/v1/ladders/{sent}"):
            status, body = raw(case, who, path)
            assert status in (404, 422), (path, status)
            assert json.loads(body)["code"] == status
        for path in (f"/trials/{sent}", f"/trials/{sent}/communication", f"/ladders/{sent}", f"/static/{sent}"):
            assert raw(case, who, path, **BROWSER)[0] in (404, 422), path
        for name in ("control", "candidate"):
            pair = {"control": case.control, "candidate": case.training, name: wrong}
            assert case.call(who, "/api/v1/compare", params=pair).status_code in (404, 422)


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=60).filter(lambda text: text.strip("./")))
def test_any_text_is_no_trial(case: Case, text: str) -> None:
    pair = {"control": text, "candidate": text}
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert case.call("admin", "/api/v1/compare", params=pair).status_code in (404, 422)
    assert case.call("admin", "/compare", params=pair).status_code in (404, 422)


def test_what_is_private_is_never_served(case: Case) -> None:
    folder = case.store / "trials" / case.training
    (folder / "private").mkdir(exist_ok=True)
    (folder / "private" / "output.log").write_text("a secret of ann's")
    for path in ("private/output.log", "private", "trial.json", "rank-00000/rank.json", "..%2fprivate", "private%2fx"):
        for root in ("/api/v1", "", "/static"):
            found = case.call("admin", f"{root}/trials/{case.training}/{path}")
            assert found.status_code == 404
            assert "a secret" not in found.text


def test_a_link_to_a_trial_is_no_trial(case: Case) -> None:
    link = case.store / "trials" / case.training.replace("-00aa", "-00bb")
    link.symlink_to(case.store / "trials" / case.bobs)
    try:
        assert case.call("ann", f"/api/v1/trials/{link.name}").status_code == 404
        assert link.name not in case.call("ann", "/api/v1/trials").text
    finally:
        link.unlink()


DAMAGES = {
    "facts": lambda folder: (folder / "trial.json").write_bytes(b"{"),
    "no facts": lambda folder: (folder / "trial.json").unlink(),
    "rank": lambda folder: (folder / "rank-00000" / "rank.json").write_bytes(b"\xff\0{"),
    "stream": lambda folder: [path.write_bytes(b"\0" * 100) for path in (folder / "rank-00001").glob("*.arrow")],
    "cut": lambda folder: [os.truncate(path, path.stat().st_size // 2) for path in folder.glob("rank-*/*.arrow")],
    "ring": lambda folder: next((folder / "comm").glob("*.ring")).write_bytes(b"\1" * 1000),
    "empty": lambda folder: [shutil.rmtree(each) for each in [*folder.glob("rank-*"), folder / "comm"]],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_trial_is_told_as_that(case: Case, damage: str) -> None:
    copy = case.store / "trials" / made.new_id(f"damaged-{damage.replace(' ', '-')}")
    shutil.copytree(case.store / "trials" / case.training, copy)
    DAMAGES[damage](copy)
    try:
        for path in [f"/api/v1/trials/{copy.name}{part}" for part in BELOW] + [f"/trials/{copy.name}"]:
            found = case.call("admin", path)
            assert found.status_code in (200, 422), (path, found.text)
            assert found.status_code == 200 or str(case.store) not in found.text
        pair = {"control": case.control, "candidate": copy.name}
        found = case.call("admin", "/api/v1/compare", params=pair)
        assert found.status_code in (200, 422)
        assert str(case.store) not in found.json().get("detail", "")
        if damage.endswith("facts"):
            listed = {each["id"]: each["status"] for each in case.json("admin", "/trials")["trials"]}
            assert listed[copy.name] == "DAMAGED"
            assert case.call("admin", f"/trials/{copy.name}", headers=BROWSER).status_code == 422
    finally:
        shutil.rmtree(copy)


def test_a_trial_that_is_being_written_is_judged_anew(case: Case) -> None:
    copy = case.store / "trials" / made.new_id("running")
    shutil.copytree(case.store / "trials" / case.training, copy)
    shutil.rmtree(copy / "comm")
    made.change(copy, status=TrialStatus.RUNNING, ended=None, exit_code=None)
    made.ring(copy, 0, 2, ended=False)
    try:
        first = case.json("admin", f"/trials/{copy.name}/communication")
        assert (first["calls"]["missing"], first["calls"]["ranks"][0]["waits"]) == ([1], True)
        assert "▶ RUNNING" in case.call("admin", f"/trials/{copy.name}").text
        assert "still in it" in case.call("admin", f"/trials/{copy.name}/communication").text
        made.ring(copy, 1, 2, calls=5)
        assert case.json("admin", f"/trials/{copy.name}/communication")["calls"]["missing"] == []
    finally:
        shutil.rmtree(copy)


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_judging_keeps_nobody_waiting(case: Case) -> None:
    """While trials are judged the gateway answers others at once."""
    slowest: list[float] = []
    done = threading.Event()

    def ask() -> None:
        with httpx.Client(trust_env=False) as client:
            while not done.is_set():
                begin = time.monotonic()
                assert client.get(f"{case.gateway.url}/healthz").status_code == 200
                slowest.append(time.monotonic() - begin)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(3):
            folder = case.store / "trials" / case.training
            (folder / "touched").write_text(str(time.time()))  # so that it has to be judged anew
            case.json("ann", f"/trials/{case.training}/check")
    finally:
        done.set()
        asking.join()
        (folder / "touched").unlink()
    assert len(slowest) > 10
    assert sorted(slowest)[len(slowest) * 9 // 10] < 0.5


def test_one_callers_requests_take_turns_and_are_few(tmp_path: Path) -> None:
    async def judge() -> tuple[int, int, list[int]]:
        judging = Judging(tmp_path, 10.0)
        at_once = most = 0

        async def run(_folders: Any) -> bytes:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.02)
            at_once -= 1
            return b"x"

        judging._run = run
        folders = [tmp_path / str(number) for number in range(20)]
        found = await asyncio.gather(*(judging.judged("ann", each) for each in folders), return_exceptions=True)
        refused = [each.status_code for each in found if isinstance(each, Refused)]
        alone = most
        others = [judging.judged(f"owner{number}", tmp_path / f"o{number}") for number in range(6)]
        await asyncio.gather(*others)
        return alone, most, refused

    alone, most, refused = asyncio.run(judge())
    assert (alone, most) == (1, 2)
    assert set(refused) == {429}
    assert len(refused) == 11


def test_a_judgement_that_takes_too_long_is_ended(case: Case) -> None:
    async def judge() -> Refused:
        judging = Judging(case.store, 0.05)
        with pytest.raises(Refused) as caught:
            await judging.judged("ann", case.store / "trials" / case.training)
        return caught.value

    found = asyncio.run(judge())
    assert (found.status_code, "judge_timeout_s" in found.detail) == (503, True)


def test_what_was_judged_is_remembered_as_long_as_it_holds(tmp_path: Path) -> None:
    async def judge() -> list[int]:
        judging = Judging(tmp_path, 10.0)
        runs = 0

        async def run(_folders: Any) -> bytes:
            nonlocal runs
            runs += 1
            return b"x"

        judging._run = run
        told = []
        for step in (lambda: None, lambda: None, lambda: (tmp_path / "a" / "new").write_text("1")):
            step()
            await judging.judged("ann", tmp_path / "a")
            await judging.judged("bob", tmp_path / "a")
            told.append(runs)
        return told

    (tmp_path / "a").mkdir()
    assert asyncio.run(judge()) == [1, 1, 2]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["trial.json", "rank-00000/sites.arrow", "private/x", "comparisons/x.json"]), st.binary())
def test_the_fingerprint_follows_what_is_judged(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("trial")
    for each in ("trial.json", "rank-00000/sites.arrow", "private/x", "comparisons/x.json"):
        (folder / each).parent.mkdir(exist_ok=True)
        (folder / each).write_bytes(b"before")
    before = fingerprint((folder,))
    assert fingerprint((folder,)) == before
    (folder / name).write_bytes(data)
    os.utime(folder / name, ns=(1, time.time_ns() + 1_000_000))
    assert (fingerprint((folder,)) == before) is name.startswith(("private", "comparisons"))


def test_the_document_describes_every_record(case: Case) -> None:
    schemas = case.call("ann", "/openapi.json").json()["components"]["schemas"]
    for name in ("TrialLines", "TrialDocument", "TrialCheck", "MemoryDocument", "CommunicationDocument", "Verdict"):
        assert schemas[name]["type"] == "object"
    assert schemas["LadderResult"]["properties"]["rungs"]["items"] == {"$ref": "#/components/schemas/RungResult"}
    assert msgspec.json.encode(schemas).count(b'"type":"number"') <= 20, "numbers of records may be null"
