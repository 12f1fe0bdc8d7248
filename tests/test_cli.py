"""The command line: exit codes, messages, documents on standard output, and what is loaded for it."""

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import pytest

from ddparity._errors import CommandFailed, DdparityError, ExitCode, TraceError, TrialNotFound, UsageError
from ddparity.cli._app import COMMANDS, build
from ddparity.cli._output import coloured, table
from ddparity.trace import RankFacts, TrialFacts, TrialStatus, write_atomically
from ddparity.trials import Ledger, Store

pytestmark = pytest.mark.timeout(120)
WIDTH = max(map(len, COMMANDS))
GROUPS = {"export", "trials", "zoo", "checkpoint"}
DDPARITY = str(Path(sys.executable).with_name("ddparity"))


def run(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    whole = {**os.environ, "PATH": path, "COLUMNS": "200", **env}
    command = [DDPARITY, *arguments]
    return subprocess.run(command, cwd=cwd, env=whole, capture_output=True, text=True, timeout=90, check=False)


def add(store: Store, name: str, **settings) -> TrialFacts:
    trial_id, folder = store.create(name)
    base = {"command": ["python", "train.py"], "cwd": "/", "status": TrialStatus.COMPLETED, "started": time.time()}
    facts = TrialFacts(**{"id": trial_id, "name": name, **base, **settings})
    write_atomically(folder / "trial.json", msgspec.json.encode(facts))
    return facts


def test_help_lists_every_command_and_the_exit_codes(tmp_path):
    done = run("--help", cwd=tmp_path)
    assert done.returncode == ExitCode.PASS
    for name, line in COMMANDS.items():
        assert f"  {name:<{WIDTH}}  {line}\n" in done.stdout
    flat = " ".join(done.stdout.split())
    for code in ("0 pass", "1 a deviation", "2 usage", "3 inconclusive", "4 the launched command failed", "130 interr"):
        assert code in flat
    assert "1 wins over 3, and 3 over 0" in flat


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_the_exit_codes(name, tmp_path):
    done = run(name, "--help", cwd=tmp_path)
    assert done.returncode == ExitCode.PASS
    assert "Exit codes: 0 pass" in " ".join(done.stdout.split())


def test_the_short_lines_fit_on_one_line_of_help(tmp_path):
    assert "..." not in run("--help", cwd=tmp_path, COLUMNS="80").stdout.split("Commands:")[1]


def test_the_whole_application_can_be_built():
    assert {group.name for group in build().registered_groups} == GROUPS
    assert {command.name for command in build().registered_commands} == {*COMMANDS} - GROUPS


def test_exit_codes_of_the_errors():
    codes = {DdparityError: 2, UsageError: 2, TrialNotFound: 2, TraceError: 3, CommandFailed: 4}
    assert {kind: int(kind.exit_code) for kind in codes} == codes
    assert issubclass(UsageError, ValueError)
    assert issubclass(TraceError, ValueError)


LOADED = "import sys; print([name for name in ('torch', 'numpy', 'pyarrow', 'rich') if name in sys.modules])"
HELP = """
    import sys
    sys.argv = ["ddparity", *sys.argv[1:]]
    from ddparity.cli import main
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, end.code
"""


def loaded_by(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", f"{textwrap.dedent(code)}\n{LOADED}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["record", "--help"], ["compare", "--help"]])
def test_help_loads_no_heavy_library(arguments):
    assert loaded_by(HELP, *arguments) == "[]"


def test_listing_trials_loads_no_heavy_library(tmp_path):
    assert loaded_by(HELP, "trials", "list", "--store", str(tmp_path)) == "[]"


def test_the_test_of_what_is_loaded_can_fail():
    assert loaded_by("import numpy, pyarrow") == "['numpy', 'pyarrow']"


def test_help_answers_at_once(tmp_path):
    """In processor time: what else the machine does does not count."""
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run("--help", cwd=tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < 0.3


def test_version(tmp_path):
    assert run("--version", cwd=tmp_path).stdout.startswith("ddparity 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recrod"], "No such command 'recrod'. Did you mean 'record', 'repro', 'recover'?"),
        (["record"], "Missing argument 'COMMAND'"),
        (["record", "--steps", "0", "--", "true"], "--steps '0' cannot be used"),
        (["record", "--level", "all", "--", "true"], "Allowed are: gradients, activations."),
        (["record", "--name", "../x", "--", "true"], "ddparity: '../x' cannot be the name of a trial."),
        (["record", "--store", "/dev/null", "--", "true"], "is not a folder"),
        (["compare", "single"], "Missing argument 'CANDIDATE'"),
        (["compare", "single", "ddp2"], "holds no trial. Record one (ddparity record --name NAME -- COMMAND)"),
        (["trials", "show", "x"], "ddparity: No trial 'x': the store"),
        (["trials", "list", "--colour"], "No such option"),
    ],
)
def test_usage_errors_exit_with_2_and_one_clear_message(arguments, message, tmp_path):
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".ddparity").exists()


def test_record_says_what_became_of_the_command(tmp_path):
    done = run("record", "--name", "a", "--", "sh", "-c", "echo out; echo err >&2", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (ExitCode.PASS, "out\n")
    (facts,) = Store(tmp_path / ".ddparity").trials()
    assert (facts.name, facts.command) == ("a", ["sh", "-c", "echo out; echo err >&2"])
    assert done.stderr.splitlines()[0] == "err"
    assert f"ddparity: {facts.id}: COMPLETED in " in done.stderr
    assert "ddparity: note: nothing was recorded" in done.stderr
    assert "Try: ddparity doctor" in done.stderr


def test_the_commands_own_options_are_left_to_it(tmp_path):
    done = run("record", "--", "echo", "--name", "x", "--", "--control", cwd=tmp_path)
    assert done.stdout == "--name x -- --control\n"
    assert run("record", "echo", "--steps", "8", cwd=tmp_path).stdout == "--steps 8\n"
    assert {facts.name for facts in Store(tmp_path / ".ddparity").trials()} == {"echo"}


def test_a_trial_without_a_name_is_named_after_its_script(tmp_path):
    (tmp_path / "my train.py").write_text("")
    run("record", "--", sys.executable, "my train.py", cwd=tmp_path)
    run("record", "--control", "--no-prove", "--", "true", cwd=tmp_path)
    assert [facts.name for facts in Store(tmp_path / ".ddparity").trials()] == ["control", "my-train"]


def test_record_exits_with_4_when_the_command_failed(tmp_path):
    done = run("record", "--", "sh", "-c", "exit 7", cwd=tmp_path)
    assert done.returncode == ExitCode.COMMAND_FAILED
    assert "FAILED (exit code 7) in" in done.stderr
    done = run("record", "--timeout", "0.5", "--", "sleep", "60", cwd=tmp_path)
    assert done.returncode == ExitCode.COMMAND_FAILED
    assert "TIMED_OUT in" in done.stderr
    assert "the command was ended after --timeout 0.5 s" in done.stderr
    done = run("record", "--", "no-such-program", cwd=tmp_path)
    assert done.returncode == ExitCode.COMMAND_FAILED
    assert done.stderr.startswith("ddparity: The command cannot be started: 'no-such-program' was not found on PATH.")


def test_record_exits_with_3_when_a_control_is_no_control(tmp_path):
    done = run("record", "--control", "--name", "single", "--", "true", cwd=tmp_path)
    assert done.returncode == ExitCode.INCONCLUSIVE
    assert "ddparity: control FAILED: nothing was recorded, so there is nothing to compare" in done.stderr


def test_a_control_that_needs_a_launcher_is_told_how_one_device_is_launched(tmp_path):
    (tmp_path / "train.py").write_text("import os; os.environ['LOCAL_RANK']")
    python = [sys.executable, "-u", "train.py", "--lr", "1"]
    done = run("record", "--control", "--name", "single", "--", *python, cwd=tmp_path)
    assert done.returncode == ExitCode.COMMAND_FAILED
    command = "ddparity record --control --name single -- torchrun --nproc-per-node 1 train.py --lr 1"
    assert f"one device under it, too: {command}\n" in done.stderr
    for other in (["torchrun", "--nproc-per-node", "1", "no.py"], ["sh", "-c", "exit 7"]):
        assert "needs a launcher" not in run("record", "--control", "--", *other, cwd=tmp_path).stderr


def test_record_exits_with_130_when_it_is_interrupted(tmp_path):
    command = [DDPARITY, "record", "--", "sh", "-c", "touch ready; exec sleep 60"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(400):
            if (tmp_path / "ready").exists():
                break
            time.sleep(0.05)
        time.sleep(0.2)  # sh is becoming sleep
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "INTERRUPTED (SIGINT) in" in err


def test_trials_list_and_show(tmp_path):
    store = Store(tmp_path / ".ddparity")
    control = add(store, "single", control=True, exit_code=0, notes=["a\x1b[2Jnote"], env={"RANK": "0"})
    candidate = add(store, "ddp2", exit_code=1, status=TrialStatus.FAILED)
    rank = RankFacts(rank=0, local_rank=0, world_size=2, pid=1, hostname="h", error_type="ValueError", backend="gloo")
    folder = store.path(candidate.id) / "rank-00000"
    folder.mkdir()
    (folder / "rank.json").write_bytes(msgspec.json.encode(rank))
    (store.path(candidate.id) / "rank-00001").mkdir()
    with Ledger(store) as ledger:
        ledger.put_comparison(control=control.id, candidate=candidate.id, status="DEVIATES", verdict="{}")

    lines = run("trials", "list", cwd=tmp_path).stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATUS", "EXIT", "CONTROL", "RECORDED", "ID", "COMMAND"]
    assert [line.split()[:2] for line in lines[1:]] == [["ddp2", "FAILED"], ["single", "COMPLETED"]]
    assert lines[1].endswith("  python train.py")
    assert candidate.id in lines[1]

    text = run("trials", "show", "single", cwd=tmp_path).stdout
    assert "a [2Jnote" in text
    assert "\x1b" not in text
    assert "RANK=0" in text
    text = run("trials", "show", "ddp2", cwd=tmp_path).stdout
    for words in ("FAILED (exit code 1)", "rank 0    of 2", "RUNNING: ValueError", "gloo", "damaged: ", "DEVIATES"):
        assert words in text

    listed = json.loads(run("trials", "list", "--json", cwd=tmp_path).stdout)
    assert [row["name"] for row in listed["trials"]] == ["ddp2", "single"]
    shown = json.loads(run("trials", "show", "ddp2", "--json", cwd=tmp_path).stdout)
    assert shown["trial"]["status"] == "FAILED"
    assert shown["ranks"][0]["error_type"] == "ValueError"
    assert len(shown["damaged"]) == 1
    assert shown["comparisons"][0]["verdict"] == {}


def test_an_empty_store_is_listed_with_what_to_do(tmp_path):
    done = run("trials", "list", cwd=tmp_path)
    assert "holds no trial. Record one: ddparity record --name NAME -- COMMAND" in done.stdout
    assert json.loads(run("trials", "list", "--json", cwd=tmp_path).stdout)["trials"] == []
    assert not (tmp_path / ".ddparity").exists()


def test_where_the_store_comes_from(tmp_path):
    add(Store(tmp_path / "a"), "in-a")
    add(Store(tmp_path / "b"), "in-b")
    home = {"DDPARITY_HOME": str(tmp_path / "a")}
    assert "in-a" in run("trials", "list", cwd=tmp_path, **home).stdout
    assert "in-b" in run("trials", "list", "--store", "b", cwd=tmp_path, **home).stdout


def test_a_reader_that_goes_away_changes_nothing(tmp_path):
    for index in range(3):
        add(Store(tmp_path / ".ddparity"), f"t{index}", command=["x" * 100_000])
    with subprocess.Popen(
        [DDPARITY, "trials", "list"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(timeout=30) == ExitCode.PASS
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_terminal_without_glyphs_is_no_reason_to_fail(tmp_path):
    done = run("doctor", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == ExitCode.PASS
    assert "? OK" in done.stdout


def test_doctor(tmp_path):
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == ExitCode.PASS
    assert "✓ OK    torch: 2." in done.stdout
    assert done.stdout.endswith("next: ddparity record --control --name single -- python train.py\n")
    document = json.loads(run("doctor", "--json", cwd=tmp_path).stdout)
    assert {check["grade"] for check in document["checks"]} <= {"OK", "WARN", "FAIL"}
    assert document["recordable"]["one process"] == "yes"
    assert not (tmp_path / ".ddparity").exists()


def test_doctor_warns_of_what_stands_in_the_way(tmp_path):
    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "DDPARITY_CAPTURE": "{}"}
    done = run("doctor", cwd=tmp_path, **env)
    assert done.returncode == ExitCode.PASS
    assert "DETAIL crashes DistributedDataParallel on gloo with torch 2.13" in done.stdout
    assert "unset TORCH_DISTRIBUTED_DEBUG" in done.stdout
    assert "the bootstrap on PYTHONPATH (TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stdout
    assert "unset DDPARITY_CAPTURE" in done.stdout


def test_doctor_fails_where_the_training_has_no_torch(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho \'{"torch": null, "ddparity": null}\'\n')
    python.chmod(0o755)
    done = run("doctor", cwd=tmp_path, PATH=str(python.parent))
    assert done.returncode == ExitCode.USAGE
    assert "✗ FAIL  torch: not installed where the training runs" in done.stdout
    assert "! WARN  torchrun: not on PATH" in done.stdout
    assert done.stdout.endswith("next: pip install 'ddparity[torch]'\n")


def test_doctor_suggests_what_comes_next(tmp_path):
    store = Store(tmp_path / ".ddparity")
    add(store, "single", control=True)
    add(store, "single.repeat")
    suggestion = json.loads(run("doctor", "--json", cwd=tmp_path).stdout)["suggestion"]
    assert suggestion == "ddparity record --name ddp2 -- torchrun --nproc-per-node 2 train.py"
    add(store, "ddp2")
    assert json.loads(run("doctor", "--json", cwd=tmp_path).stdout)["suggestion"] == "ddparity compare single ddp2"


def test_config_shows_each_setting_with_its_source(tmp_path):
    add(Store(tmp_path / "kept"), "a")
    (tmp_path / "kept" / "gateway.toml").write_text('port = 9000\nhost = "localhost"\n')
    (tmp_path / "kept" / "gateway.json").write_text('{"url": "http://127.0.0.1:7777/"}')
    env = {
        "DDPARITY_HOME": str(tmp_path / "kept"),
        "DDPARITY_TOKEN": "ddp_secret",
        "DDPARITY_GATEWAY_PORT": "9001",
        "DDPARITY_GATEWAY_DATABASE_URL": "postgresql+psycopg://me:secret@db/jobs",
    }
    done = run("config", "--gateway", "--json", cwd=tmp_path, **env)
    found = {row["name"]: (row["value"], row["source"]) for row in json.loads(done.stdout)["settings"]}
    assert found["store"] == (str(tmp_path / "kept"), "DDPARITY_HOME")
    assert found["url"] == ("http://127.0.0.1:7777", "gateway.json in the store")
    assert found["token"] == ("set", "DDPARITY_TOKEN")
    assert found["gateway port"] == (9001, "DDPARITY_GATEWAY_PORT")
    assert found["gateway host"] == ("localhost", "gateway.toml")
    assert found["gateway slots"] == (None, "default")
    assert found["gateway database_url"][0] == "postgresql+psycopg://***@db/jobs"
    assert "secret" not in done.stdout
    text = run("config", "--store", "here", cwd=tmp_path, **env, NO_COLOR="1").stdout
    assert re.search(rf"^store +--store +{tmp_path}/here$", text, re.MULTILINE)
    assert re.search(r"^colour +NO_COLOR +off$", text, re.MULTILINE)
    assert not (tmp_path / "here").exists()


def test_an_unknown_setting_of_the_gateway_is_refused(tmp_path):
    add(Store(tmp_path / ".ddparity"), "a")
    (tmp_path / ".ddparity" / "gateway.toml").write_text("prot = 9000\n")
    done = run("config", "--gateway", cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "Did you mean 'port'?" in done.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ddparity comp", ["compare"]),
        ("ddparity compare --al", ["--allow-stale"]),
        ("ddparity trials ", ["list", "show"]),
    ],
)
def test_a_shell_is_told_how_words_may_go_on(typed, offered, tmp_path):
    words = str(len(typed.split(" ")) - 1)
    done = run(cwd=tmp_path, _DDPARITY_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=words)
    assert done.stdout.split() == offered
    assert run(cwd=tmp_path, _DDPARITY_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=typed).stdout.count(offered[0])


@pytest.mark.parametrize("typed", ["ddparity compare s", "ddparity compare a --store kept s", "ddparity hang s"])
def test_a_shell_is_told_the_names_of_trials(typed, tmp_path):
    for name in ("single", "ddp2"):
        add(Store(tmp_path / "kept"), name)
    words = str(len(typed.split(" ")) - 1)
    env = {"DDPARITY_HOME": str(tmp_path / ("none" if "--store" in typed else "kept"))}
    done = run(cwd=tmp_path, _DDPARITY_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=words, **env)
    assert (done.stdout.split(), done.stderr) == (["single"], "")


def test_the_script_for_a_shell_is_shown(tmp_path):
    done = run("--show-completion", "bash", cwd=tmp_path, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_DDPARITY_COMPLETE=complete_bash" in done.stdout


READERS = {"compare", "data", "ladder", "memory", "plan", "explain", "hang", "recover", "jobs", "status", "inspect"}
READERS |= {"bundle", "config", "doctor", "trials list", "trials show", "checkpoint verify", "zoo run", "preflight"}


@pytest.mark.parametrize("command", sorted(READERS))
def test_what_reads_prints_a_document_too(command, tmp_path):
    assert "--json" in run(*command.split(), "--help", cwd=tmp_path).stdout


BROKEN = """
    import sys
    import ddparity.trials
    def broken(*_):
        raise RuntimeError("broken on purpose")
    ddparity.trials.Store.resolve = broken
    sys.argv = ["ddparity", "trials", "list"]
    from ddparity.cli import main
    main()
"""


def test_a_fault_of_ours_asks_to_be_reported(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(BROKEN)]
    env = {**os.environ}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr == (
        "ddparity: this is a fault of ddparity itself: RuntimeError: broken on purpose\n"
        "Please report it, with what DDPARITY_DEBUG=1 prints for the same command.\n"
    )
    env["DDPARITY_DEBUG"] = "1"
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" in done.stderr
    assert done.returncode == ExitCode.USAGE


def test_colour_is_for_terminals_that_want_it():
    text = "✗ DEVIATES      numerics  x\nPARTIAL: y\n  cause     PASS of x\n"
    assert coloured(text) == (
        "\x1b[31m✗ DEVIATES\x1b[0m      numerics  x\n\x1b[33mPARTIAL\x1b[0m: y\n  cause     PASS of x\n"
    )


@pytest.mark.parametrize(("env", "in_colour"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_no_color_is_respected(env, in_colour):
    code = "from ddparity.cli._output import emit; emit('✓ PASS          numerics')"
    master, slave = pty.openpty()
    whole = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm", **env}
    try:
        subprocess.run([sys.executable, "-c", code], stdout=slave, env=whole, timeout=60, check=True)
        assert ("\x1b[32m" in os.read(master, 1000).decode()) is in_colour
    finally:
        os.close(master)
        os.close(slave)


def test_columns_are_aligned_and_nothing_is_cut():
    assert table(("A", "B"), [("x" * 50, "1"), ("y", "")]) == f"A{' ' * 51}B\n{'x' * 50}  1\ny"
