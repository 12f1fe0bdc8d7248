"""Making a reproduction: read what ran, describe its inputs, write the script, run it."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ddparity._errors import CommandFailed, ExitCode, UsageError
from ddparity.bundle._scrub import Scrubber
from ddparity.judge import compare_trials
from ddparity.repro._case import Case, first_of
from ddparity.repro._fields import named_fields
from ddparity.repro._layout import Layout
from ddparity.repro._render import render
from ddparity.repro._run import checked_inputs
from ddparity.repro._sources import cleaned, imported, needs_and_stand_ins, read_sources
from ddparity.trace import Event, Trial, TrialFacts, TrialStatus, read_json, read_trial
from ddparity.trace._inputs import FOLDER, InputSpecs
from ddparity.trace._windows import parse_windows
from ddparity.trials import RecordSpec, Store, outcome, record, uninterrupted

LONG = 64
"""Steps up to which a training is run whole."""
MARGIN = 4
"""Steps that a longer one runs beyond the finding and the recorded steps."""
_PATIENCE_S = 60.0
"""How long a reproduction that is asked to end may take to end its own ranks."""
_ARITHMETIC = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "OPENBLAS_NUM_THREADS")
_ARITHMETIC += ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "PYTHONHASHSEED")


@dataclass(frozen=True, kw_only=True)
class ReproOptions:
    """What to reproduce and where to write it.

    Attributes:
        control: Folder of the control.
        candidate: Folder of the candidate, in the same store.
        output: The script to write.
        check: Whether it is run.
        timeout_s: Seconds after which one of the runs is ended.
    """

    control: Path
    candidate: Path
    output: Path
    check: bool = True
    timeout_s: float = 300.0


@dataclass(frozen=True, kw_only=True)
class Product:
    """What came of it.

    Attributes:
        case: What the script holds besides sources.
        notes: What the user should know.
        code: Exit code of the script when it was run here: DEVIATES is what it should be. None: not checked.
        said: The last line that it printed.
        output: All of it.
    """

    case: Case
    notes: list[str]
    code: int | None = None
    said: str = ""
    output: str = ""


def make_repro(options: ReproOptions, say: Callable[[str], None] = lambda _: None) -> Product:
    """Write a script that shows a candidate's first finding elsewhere, and run it.

    Raises:
        UsageError: There is nothing to reproduce, or the sources are not here as they ran.
        CommandFailed: The control does not run any more.
    """
    trials = control, candidate = read_trial(options.control), read_trial(options.candidate)
    expected = first_of(compare_trials(options.control, options.candidate, allow_stale=True))
    if expected is None:
        raise UsageError(
            f"{candidate.facts.name!r} held against {control.facts.name!r} has no finding: there is nothing to "
            f"reproduce. See: ddparity compare {control.facts.name} {candidate.facts.name}"
        )
    _check_machines(trials)
    sources = read_sources(trials)
    steps = _last_step(control, candidate, expected.step)
    say("the control runs once more, to describe its inputs: shapes, dtypes, ranges, padding, no value")
    seen = _describe(control, steps, options.timeout_s)
    seen.files = [file for file in seen.files if Path(file) not in sources]  # configuration comes along
    scrub, layout = Scrubber(trials), Layout(Path(candidate.facts.cwd), sources)
    texts = {layout.targets[path]: cleaned(text, scrub) for path, text in sources.items()}
    inputs = named_fields(checked_inputs(seen), "\n".join(texts.values()))
    if expected.layer == "data":  # which samples a loader hands out is what is to be seen: they are not replaced
        inputs = msgspec.structs.replace(inputs, streams={})
    needs, stand_ins = needs_and_stand_ins(imported(texts, _modules(texts)), inputs.readers)
    facts = candidate.facts
    case = Case(
        control=_with_threads(control.facts, layout.command(control.facts.command, scrub)),
        candidate=_with_threads(facts, layout.command(facts.command, scrub)),
        expected=expected,
        inputs=msgspec.structs.replace(inputs, problems=[]),
        roots=layout.roots,
        needs=needs,
        stand_ins=stand_ins,
        steps=facts.steps,
        level=facts.level,
        stop_after_steps=steps,
        dtype=facts.dtype,
        neutral_dropout=facts.neutral_dropout,
        floor=control.facts.floors is not None,
        batch_dim=facts.batch_dim,
    )
    text = render(case, texts)
    notes = [*seen.problems, *inputs.problems, *_named(text, scrub), *_about_files(seen)]
    _write(options.output, text)
    product = Product(case=case, notes=list(dict.fromkeys(notes)))
    return product if not options.check else _checked(options, product, seen.files, say)


def _check_machines(trials: tuple[Trial, ...]) -> None:
    for trial in trials:
        hosts = {rank.facts.hostname for rank in trial.ranks}
        if len(hosts) > 1:
            raise UsageError(
                f"{trial.facts.name!r} ran on {len(hosts)} machines, and a reproduction runs on one. Record it with "
                "all ranks on one machine, and make the reproduction of that."
            )
        if not Path(trial.facts.cwd).is_dir():
            raise UsageError(
                f"The folder that {trial.facts.name!r} ran in is not here: it was recorded elsewhere, or moved. A "
                "reproduction is made where its sources are; others get: ddparity bundle TRIAL -o case.zip"
            )


def _last_step(control: Trial, candidate: Trial, at: int | None) -> int | None:
    """Return after how many steps the runs end; None: as the scripts do."""
    asked = candidate.facts.stop_after_steps or control.facts.stop_after_steps
    steps = [event.step for rank in control.ranks[:1] for event in rank.events if event.kind == Event.STEP]
    if asked is not None or not steps or max(steps) < LONG:
        return asked
    windows = [stop for _, stop in parse_windows(candidate.facts.steps) if stop <= max(steps)]
    return max([*windows, (at or 0) + 1]) + MARGIN


def _describe(control: Trial, steps: int | None, timeout_s: float) -> InputSpecs:
    facts = control.facts
    with tempfile.TemporaryDirectory(prefix="ddparity-", ignore_cleanup_errors=True) as folder:
        store = Store(Path(folder))
        with contextlib.chdir(facts.cwd):
            ran = record(
                RecordSpec(
                    command=facts.command,
                    store=store,
                    name="inputs",
                    prove=False,
                    steps="1",
                    level="gradients",
                    stop_after_steps=steps,
                    batch_dim=facts.batch_dim,
                    describe_inputs=True,
                    timeout_s=timeout_s,
                    on_hang="stop",
                    quiet=True,
                )
            )
        if uninterrupted(ran).status is not TrialStatus.COMPLETED:
            raise CommandFailed(
                f"The control does not run here any more ({outcome(ran)}), so its inputs are not known. Its command "
                f"has to run in {facts.cwd!r} as it did when it was recorded. Try it without ddparity first."
            )
        found = InputSpecs()
        for path in sorted((store.path(ran.id) / "private" / FOLDER).glob("*.json")):
            found = found.taking(read_json(path, InputSpecs))
        return found


def _with_threads(facts: TrialFacts, command: list[str]) -> list[str]:
    """Return a command with what of the environment changes arithmetic in front of it."""
    said = {word.partition("=")[0] for word in command if "=" in word}
    own = [f"{name}={facts.env[name]}" for name in _ARITHMETIC if name in facts.env and name not in said]
    return command if not own else ["env", *own, *command]


def _modules(texts: Mapping[str, str]) -> set[str]:
    return {part for name in texts for part in Path(name).with_suffix("").parts}


def _named(text: str, scrub: Scrubber) -> list[str]:
    """Say which names are left: they are parts of identifiers, and a program with others is another program."""
    left = [name for name in scrub.names if name in text]
    return [f"the sources still say {', '.join(map(repr, left))}, in names of variables or files"] if left else []


def _about_files(seen: InputSpecs) -> list[str]:
    if not seen.files:
        return []
    kinds = sorted({Path(file).suffix or "no suffix" for file in seen.files})
    return [
        f"the script reads {len(seen.files)} file{'s' if len(seen.files) > 1 else ''} of data ({', '.join(kinds)}); "
        "none comes along, and when the reproduction is checked they are treated as missing"
    ]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written ({error.strerror}). Name another file with -o.") from error


def _run_to_its_end(command: list[str], folder: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that starts others; where this one is interrupted it is asked to end them, and waited for."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        try:
            out, err = process.communicate()
        except KeyboardInterrupt:
            process.terminate()
            process.wait(_PATIENCE_S)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _checked(options: ReproOptions, product: Product, files: list[str], say: Callable[[str], None]) -> Product:
    say("the reproduction is run, as it would be elsewhere")
    with tempfile.TemporaryDirectory(prefix="ddparity-") as folder:
        hidden = Path(folder) / "hidden.json"
        hidden.write_bytes(msgspec.json.encode(files))
        command = [sys.executable, str(options.output.resolve()), "--without", str(hidden)]
        command += ["--timeout", str(options.timeout_s)]
        done = _run_to_its_end(command, folder)
    if done.returncode == ExitCode.INTERRUPTED or done.returncode < 0:
        raise KeyboardInterrupt
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    said = lines[-1] if lines else f"it ended with exit code {done.returncode} and said nothing"
    return Product(
        case=product.case, notes=product.notes, code=done.returncode, said=said, output=done.stdout + done.stderr
    )
