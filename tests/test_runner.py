"""Recording a command: real processes, how they end, and what is told of it."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import msgspec
import pytest

from ddparity._errors import CommandFailed, UsageError
from ddparity.trace._rings import read_rings
from ddparity.trace._schema import CaptureConfig, TrialStatus
from ddparity.trials import Ledger, RecordSpec, Store, rank_folders, read_facts, record
from ddparity.trials import _launch as launch_module

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def spec(store: Store, *command: str, **settings) -> RecordSpec:
    return RecordSpec(**{"command": list(command), "store": store, "name": "t", "quiet": True, **settings})


def python(store: Store, code: str, **settings) -> RecordSpec:
    return spec(store, sys.executable, "-c", textwrap.dedent(code), **settings)


def output(store: Store, trial_id: str) -> str:
    return (store.path(trial_id) / "private" / "output.log").read_text()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for(path: Path) -> str:
    for _ in range(400):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")


def test_a_command_that_ends_well(store, tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("print('hello')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    facts = record(spec(store, sys.executable, "train.py", "--lr", "0.1"))
    assert (facts.status, facts.exit_code, facts.signal, facts.proof) == (TrialStatus.COMPLETED, 0, None, None)
    assert facts.command == [sys.executable, "train.py", "--lr", "0.1"]
    assert (facts.cwd, facts.script) == (str(tmp_path), str(script))
    assert facts.env["OMP_NUM_THREADS"] == "1"
    assert "hunter2" not in (store.path(facts.id) / "trial.json").read_text()
    assert facts.started <= (facts.ended or 0) <= time.time()
    assert read_facts(store.path(facts.id)) == facts
    assert output(store, facts.id) == "hello\n"
    with Ledger(store) as ledger:
        assert ledger.trials()[0].status == "COMPLETED"


def test_the_recorder_inside_gets_its_configuration(store):
    code = "import os; print(os.environ['DDPARITY_CAPTURE']); print(os.environ['PYTHONPATH'])"
    facts = record(python(store, code, steps="0:2,7:8", level="gradients", stop_after_steps=9, batch_dim=1))
    config, path = output(store, facts.id).splitlines()
    assert msgspec.json.decode(config, type=CaptureConfig) == CaptureConfig(
        trial_dir=str(store.path(facts.id)), steps="0:2,7:8", level="gradients", stop_after_steps=9, batch_dim=1
    )
    assert Path(config).is_absolute() or store.root.is_absolute()
    assert "ddparity" in path.split(os.pathsep)[0]
    assert "DDPARITY_CAPTURE" not in os.environ


def test_the_users_pythonpath_comes_behind_ours(store, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere:/else")
    facts = record(python(store, "import os; print(os.environ['PYTHONPATH'])"))
    assert output(store, facts.id).strip().split(os.pathsep)[1:] == ["/somewhere", "/else"]


def test_a_command_that_fails(store):
    facts = record(python(store, "raise SystemExit(7)"))
    assert (facts.status, facts.exit_code, facts.signal) == (TrialStatus.FAILED, 7, None)


def test_a_command_that_dies_by_a_signal(store):
    facts = record(python(store, "import os; os.kill(os.getpid(), 9)"))
    assert (facts.status, facts.exit_code, facts.signal) == (TrialStatus.FAILED, -9, "SIGKILL")


def test_nothing_recorded_is_noted_with_what_to_try(store):
    facts = record(python(store, "pass"))
    assert facts.notes == [
        "nothing was recorded: no process of the command imported torch, or the recorder was kept out of it. "
        "Try: ddparity doctor"
    ]


def test_a_run_that_died_after_its_work_is_told_apart(store):
    code = """
        import json, os, pathlib
        folder = pathlib.Path(json.loads(os.environ["DDPARITY_CAPTURE"])["trial_dir"]) / "rank-00000"
        folder.mkdir()
        rank = {"rank": 0, "local_rank": 0, "world_size": 1, "pid": os.getpid(), "hostname": "h", "status": STATUS}
        (folder / "rank.json").write_text(json.dumps(rank))
        os.abort()
    """
    facts = record(python(store, code.replace("STATUS", "'FINISHED'")))
    assert (facts.status, facts.signal) == (TrialStatus.FAILED, "SIGABRT")
    assert facts.notes == ["the command ended with SIGABRT after every recorded rank had finished its work"]
    assert record(python(store, code.replace("STATUS", "'RUNNING'"))).notes == []


def test_only_ranks_count_as_ranks(tmp_path):
    for name in ("rank-00001", "rank-00000", "rank-100000", "rank-00000.4711", "rank-x", "comparisons"):
        (tmp_path / name).mkdir()
    (tmp_path / "rank-00002").touch()
    assert [path.name for path in rank_folders(tmp_path)] == ["rank-00000", "rank-00001", "rank-100000"]
    assert rank_folders(tmp_path / "none") == []


def test_a_time_out_ends_the_command(store):
    facts = record(python(store, "import time; time.sleep(60)", timeout_s=0.5))
    assert (facts.status, facts.exit_code, facts.signal) == (TrialStatus.TIMED_OUT, -15, "SIGTERM")
    assert "the command was ended after --timeout 0.5 s" in facts.notes


def test_a_command_that_will_not_end_is_killed(store, monkeypatch):
    monkeypatch.setattr(launch_module, "KILL_AFTER_SECONDS", 0.5)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    facts = record(python(store, code, timeout_s=1.0))
    assert (facts.status, facts.signal) == (TrialStatus.TIMED_OUT, "SIGKILL")


ORPHANS = """
    import subprocess, sys, time
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    same_group = subprocess.Popen(sleep)
    own_session = subprocess.Popen(sleep, start_new_session=True)
    print(same_group.pid, own_session.pid, flush=True)
"""


def test_after_a_failure_nothing_is_left_in_any_session(store):
    facts = record(python(store, ORPHANS + "    raise SystemExit(1)"))
    assert not any(is_alive(int(pid)) for pid in output(store, facts.id).split())
    assert "2 processes of the command outlived it and had to be ended" in facts.notes


def test_after_a_time_out_nothing_is_left_in_any_session(store):
    facts = record(python(store, ORPHANS + "    time.sleep(60)", timeout_s=1.5))
    assert not any(is_alive(int(pid)) for pid in output(store, facts.id).split())


def test_after_a_good_end_only_the_group_is_cleared(store):
    facts = record(python(store, ORPHANS))
    same_group, own_session = map(int, output(store, facts.id).split())
    try:
        assert facts.status is TrialStatus.COMPLETED
        assert not is_alive(same_group)
        assert is_alive(own_session)
        assert "1 process of the command outlived it and had to be ended" in facts.notes
    finally:
        os.kill(own_session, signal.SIGKILL)


def test_other_peoples_processes_are_left_alone(store):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        record(python(store, "raise SystemExit(1)"))
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait(timeout=10)


RECORDER = """
    import sys
    from pathlib import Path
    from ddparity.trials import RecordSpec, Store, record
    facts = record(RecordSpec(command=sys.argv[2:], store=Store(Path(sys.argv[1])), name="t", control=True))
    print(facts.status.value, facts.exit_code, facts.signal, facts.proof.status)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on_and_the_trial_is_finished(store, tmp_path, number):
    ready, ended = tmp_path / "ready", tmp_path / "ended"
    child = f"""if True:
        import pathlib, signal, sys, time
        def end(number, frame):
            pathlib.Path({str(ended)!r}).write_text(str(number))
            sys.exit(5)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end)
        pathlib.Path({str(ready)!r}).write_text("1")
        time.sleep(60)
    """
    arguments = [sys.executable, "-c", textwrap.dedent(RECORDER), str(store.root), sys.executable, "-c", child]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as recorder:
        wait_for(ready)
        recorder.send_signal(number)
        out, _ = recorder.communicate(timeout=30)
    assert out == "INTERRUPTED 5 None NOT_PROVED\n"
    assert ended.read_text() == str(int(number))
    (facts,) = store.trials()
    assert f"ddparity received {signal.Signals(number).name} and passed it on" in facts.notes


def test_the_third_interrupt_kills(store, tmp_path):
    ready = tmp_path / "ready"
    child = f"""if True:
        import pathlib, signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        pathlib.Path({str(ready)!r}).write_text("1")
        time.sleep(60)
    """
    arguments = [sys.executable, "-c", textwrap.dedent(RECORDER), str(store.root), sys.executable, "-c", child]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as recorder:
        wait_for(ready)
        for _ in range(3):
            recorder.send_signal(signal.SIGINT)
            time.sleep(0.3)
        out, _ = recorder.communicate(timeout=30)
    assert out == "INTERRUPTED -9 SIGKILL NOT_PROVED\n"


def test_a_signal_that_was_ignored_stays_ignored(store):
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        facts = record(python(store, "import os, signal; os.kill(os.getppid(), signal.SIGHUP)"))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, old)
    assert facts.status is TrialStatus.COMPLETED


def test_recording_works_outside_the_main_thread(store):
    results = []
    thread = threading.Thread(target=lambda: results.append(record(python(store, "pass"))))
    thread.start()
    thread.join(timeout=30)
    assert results[0].status is TrialStatus.COMPLETED


def test_output_passes_through_untouched(store, capfd):
    record(python(store, "import sys; print('out'); print('err', file=sys.stderr)", quiet=False))
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out\n", "err\n")


def test_a_program_that_is_not_there_makes_no_trial(store):
    with pytest.raises(CommandFailed) as error:
        record(spec(store, "no-such-program"))
    assert str(error.value) == (
        "The command cannot be started: 'no-such-program' was not found on PATH. "
        "Activate the environment that the training runs in, or give the whole path. See: ddparity doctor"
    )
    assert error.value.exit_code == 4
    assert store.ids() == []


def test_hints_for_common_slips(store, tmp_path, monkeypatch):
    (tmp_path / "python3").touch(mode=0o755)
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandFailed, match=r"'python' was not found on PATH\. Did you mean python3\?"):
        record(spec(store, "python", "train.py"))
    with pytest.raises(CommandFailed, match=r"Did you mean: python train\.py\?"):
        record(spec(store, "train.py"))
    with pytest.raises(CommandFailed, match=r"'\./train\.py' is not executable"):
        record(spec(store, "./train.py"))
    with pytest.raises(CommandFailed, match=r"'\./none' does not exist \(looked in "):
        record(spec(store, "./none"))


def test_a_file_that_is_no_program_leaves_a_failed_trial(store, tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\x00\x01")
    program.chmod(0o755)
    with pytest.raises(CommandFailed, match="could not be started: Exec format error"):
        record(spec(store, str(program)))
    (facts,) = store.trials()
    assert (facts.status, facts.exit_code) == (TrialStatus.FAILED, None)
    assert facts.notes == ["the command could not be started: Exec format error"]


def test_a_control_that_is_not_proved_says_so(store):
    facts = record(python(store, "pass", control=True, prove=False))
    assert facts.proof is not None
    assert (facts.proof.status, facts.proof.reason) == ("NOT_PROVED", "--no-prove")
    assert read_facts(store.path(facts.id)).proof == facts.proof


def test_a_control_that_fails_or_records_nothing_is_not_run_again(store):
    facts = record(python(store, "raise SystemExit(7)", control=True))
    assert facts.proof is not None
    assert (facts.proof.status, facts.proof.repeat) == ("FAILED", None)
    assert facts.proof.reason == "the control itself did not end well: exit code 7"
    facts = record(python(store, "pass", control=True))
    assert facts.proof is not None
    assert facts.proof.reason == "nothing was recorded, so there is nothing to compare"
    assert len(store.ids()) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": []}, r"No command to record\. Put it after --"),
        ({"level": "all"}, r"--level 'all' is not known\. Allowed are: gradients, activations"),
        ({"steps": "x"}, "--steps 'x' cannot be used"),
        ({"stop_after_steps": 0}, "at least 1 step"),
        ({"timeout_s": 0.0}, "more than 0"),
        ({"timeout_s": float("nan")}, "more than 0"),
        ({"batch_dim": -1}, "count from 0"),
        ({"name": "../x"}, "cannot be the name of a trial"),
    ],
)
def test_settings_are_checked_before_anything_runs(store, settings, message):
    with pytest.raises(UsageError, match=message):
        spec(store, "true", **settings)


def test_groups_that_a_device_mesh_makes_are_seen(store, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    code = """
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (1,))
        torch.distributed.all_reduce(torch.ones(3), group=mesh.get_group())
        torch.distributed.destroy_process_group()
    """
    facts = record(python(store, code))
    assert facts.status is TrialStatus.COMPLETED, output(store, facts.id)
    [ring] = read_rings(store.path(facts.id))
    assert [call.op for call in ring.calls if call.numel == 3] == ["all_reduce"]
