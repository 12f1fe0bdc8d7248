"""Two hosts, a launcher on each: ranks and hosts are told apart, although each launcher sees a half of it."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddparity.judge._comm_run import load_comm
from ddparity.judge.communication import examine_trial

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = pytest.mark.slow


def has_namespaces() -> bool:
    """Whether this user may make network namespaces and join them."""
    if not all(shutil.which(program) for program in ("unshare", "nsenter", "ip")):
        return False
    return subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, check=False).returncode == 0


def recorded_on(recorded: Callable[..., Any], where: str, fault: str) -> tuple[Any, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["PORT"] = str(free.getsockname()[1])
    try:
        command = ["sh", str(SCRIPTS / "two_hosts.sh"), where, sys.executable, str(SCRIPTS / "comm_faults.py"), fault]
        facts = recorded(f"two-{where}-{fault}", command)
    finally:
        del os.environ["PORT"]
    folder = recorded.store.path(facts.id)
    return load_comm(folder), examine_trial(folder, status=facts.status)[1]


@pytest.mark.skipif(not has_namespaces(), reason="needs to make network namespaces")
@pytest.mark.parametrize(
    ("fault", "code", "ranks"),
    [
        ("killed", "rank.killed", [1]),
        ("extra", "collective.operation", [0, 1]),
        ("missing", "collective.late", [1]),
        ("reduce_op", "collective.reduce_op", [0, 1]),
    ],
)
def test_the_verdict_names_the_host_of_each_rank(recorded, fault: str, code: str, ranks: list[int]) -> None:
    run, found = recorded_on(recorded, "namespaces", fault)
    assert run.hosts() == {0: "host-a", 1: "host-b"}
    assert (found[0].cause.code, found[0].ranks) == (code, ranks)
    assert found[0].evidence["hosts"] == {"rank 0": "host-a", "rank 1": "host-b"}


@pytest.mark.skipif(not has_namespaces(), reason="needs to make network namespaces")
def test_a_healthy_run_on_two_hosts_agrees(recorded) -> None:
    run, found = recorded_on(recorded, "namespaces", "healthy")
    assert run.hosts() == {0: "host-a", 1: "host-b"}
    assert found == []


@pytest.mark.parametrize(("fault", "code", "ranks"), [("killed", "rank.killed", [1]), ("exits", "rank.exited", [1])])
def test_two_launchers_on_one_host_are_one_host(recorded, fault: str, code: str, ranks: list[int]) -> None:
    run, found = recorded_on(recorded, "here", fault)
    assert set(run.hosts().values()) == {socket.gethostname()}
    assert (found[0].cause.code, found[0].ranks) == (code, ranks)
    assert "hosts" not in found[0].evidence
