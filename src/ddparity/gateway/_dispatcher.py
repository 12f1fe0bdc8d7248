"""The loop that moves jobs on: it starts who is next, sees what runs, and enters what ended.

It keeps nothing in memory that it could not find again: rows and folders say all. One gateway of a store runs it at a
time, the one that holds the lock.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping
from typing import Any

from ddparity.gateway._commands import Gate, control_name, job_spec
from ddparity.gateway._crash import crash_point
from ddparity.gateway._engine import Engine, Observation, Stage
from ddparity.gateway._entries import EntryRefused, find_entry
from ddparity.gateway._gates import Gates
from ddparity.gateway._job import Conflict, Job
from ddparity.gateway._jobs import Jobs
from ddparity.gateway._metrics import last_values, read_metrics
from ddparity.gateway._queue import Policy, choose
from ddparity.gateway._settings import Settings
from ddparity.gateway._slots import Slots
from ddparity.gateway._states import State
from ddparity.gateway.supervisor import JobFolder, JobSpec, Result

_LOG = logging.getLogger("ddparity.gateway")
_BUSY_SECONDS, _IDLE_SECONDS = 0.1, 1.0


class Dispatcher:
    """Moves the jobs of one store on, in a thread of its own.

    Args:
        jobs: The store of jobs.
        slots: The device slots.
        gates: What the gate said of each piece of code.
        engines: What runs jobs, by name.
        settings: The gateway's settings.
    """

    def __init__(
        self, jobs: Jobs, slots: Slots, gates: Gates, engines: Mapping[str, Engine], settings: Settings
    ) -> None:
        self._jobs = jobs
        self._slots = slots
        self._gates = gates
        self._engines = engines
        self._settings = settings
        self._policy = Policy(
            max_owner_slots=settings.max_owner_slots, aging_s=settings.aging_s, patience_s=settings.patience_s
        )
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._lock: int | None = None
        self._complaints: dict[str, str] = {}
        self.leads = False
        self.beat = 0.0

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look at once, since something happened."""
        self._wake.set()

    def stop(self) -> None:
        """End the loop; jobs run on."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=30)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _run(self) -> None:
        while not self._stopping:
            self.beat = time.time()
            busy = False
            try:
                self.leads = self.leads or self._take_lead()
                busy = self.leads and self.step()
            except Exception:  # a full disk, a locked database: what failed now is tried again
                _LOG.exception("the dispatcher met an error and goes on")
            self._wake.wait(_BUSY_SECONDS if busy else _IDLE_SECONDS)
            self._wake.clear()

    def _take_lead(self) -> bool:
        if self._lock is None:
            path = self._settings.store / "gateway.lock"
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def step(self) -> bool:
        """See to every job once; return whether any is under way."""
        active = self._jobs.active()
        for job in active:
            self._see_to_safely(job)
        started = False if self._settings.paused else self._start_next()
        return bool(active) or started

    def _start_next(self) -> bool:
        """Give free slots to who is next."""
        free = self._slots.free()
        if not free and list(self._engines) == ["local"]:  # a long queue is not looked through for nothing
            return False
        waiting = self._slots.waiting()
        if not waiting or not self._has_disk():
            return False
        used = self._slots.used()
        chosen = choose(waiting, num_free=len(free), used=used, policy=self._policy, now=time.time())
        for uid in chosen:
            job = self._jobs.by_uid(uid)
            mine, free = free[: job.num_slots], free[job.num_slots :]
            taken = self._jobs.start(job, [slot.name for slot in mine])
            if taken is not None:
                crash_point("after-claim")
                self._see_to_safely(taken)
        return bool(chosen)

    def _has_disk(self) -> bool:
        try:
            return shutil.disk_usage(self._settings.store).free >= self._settings.min_free_bytes
        except OSError:
            return False

    def _see_to_safely(self, job: Job) -> None:
        """Bring one job on; what goes wrong with it keeps no other from being seen to, and is tried again."""
        try:
            self._see_to(job)
        except Conflict:  # somebody changed it: the next round reads it anew
            return
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if self._complaints.get(job.uid) != text:
                self._complaints[job.uid] = text
                _LOG.warning("job %s (%s) cannot be seen to just now: %s", job.job_id, job.uid, text)
        else:
            self._complaints.pop(job.uid, None)

    def _see_to(self, job: Job) -> None:
        """Bring one job on by what can be seen of it."""
        engine = self._engines.get(job.engine)
        if engine is None:
            return
        if job.engine_ref is None:
            prepared = self._prepare(job, engine)
            if prepared is None:
                return
            job = prepared
        ref = str(job.engine_ref)
        seen = engine.state(job.uid, ref)
        if job.cancelled_by is not None and seen.stage in (Stage.HELD, Stage.QUEUED, Stage.RUNNING):
            engine.cancel(job.uid, ref, f"cancelled by {job.cancelled_by}")
        if seen.stage is Stage.HELD:
            spec = self._folder(job).spec()
            if spec is not None:
                engine.release(spec, ref)
            crash_point("after-release")
        elif seen.stage is Stage.RUNNING and job.state is State.STARTING:
            self._jobs.change(job, State.RUNNING, started=time.time())
            crash_point("after-running")
        elif seen.stage in (Stage.ENDED, Stage.GONE):
            self._enter_end(job, seen)

    def _prepare(self, job: Job, engine: Engine) -> Job | None:
        """Hand a job to its engine, held, and remember what the engine calls it before it is released."""
        # Where a gateway that died had handed it over already, the engine has to be told of the cancel.
        if job.cancelled_by is not None and not self._folder(job).spec_path.exists():
            self._jobs.change(job, State.CANCELLED, ended=time.time(), error=f"cancelled by {job.cancelled_by}")
            return None
        try:
            spec, detail, control = self._specified(job)
        except (EntryRefused, OSError) as error:  # it was there when the job was submitted
            self._jobs.change(job, State.FAILED, ended=time.time(), error=f"it cannot be started: {error}")
            return None
        ref = engine.submit_held(spec)
        crash_point("after-held")
        job = self._jobs.note(
            job, "prepared", {"engine": job.engine, "ref": ref, **detail}, engine_ref=ref, control=control
        )
        crash_point("after-ref")
        return job

    def _specified(self, job: Job) -> tuple[JobSpec, dict[str, Any], str | None]:
        """Return what the supervisor is to do, what is worth telling of it, and the control that it has to do with."""
        entry = find_entry(job.request, self._settings.roots)
        fingerprint = entry.fingerprint()
        control = control_name(entry)
        run = job.request.gate == "on" and not self._gates.passed(fingerprint)
        if job.request.record and not self._gates.has_control(control):
            run = job.request.gate == "on"
        slots = self._slots.of(job.uid)
        gpus = [slot.position for slot in slots if slot.kind == "gpu"]
        gate = Gate(run=run, control=control)
        spec = job_spec(job.uid, job.request, entry, gate, gpus if job.engine == "local" else None, self._settings)
        why = "off" if job.request.gate == "off" else "run" if run else "passed before"
        return spec, {"gate": why, "fingerprint": fingerprint}, control if run or job.request.record else None

    def _enter_end(self, job: Job, seen: Observation) -> None:
        """Enter how a job ended: nothing of it runs any more."""
        metrics = last_values(read_metrics(self._folder(job).metrics_path))
        result = seen.result
        if result is None:
            self._jobs.change(job, State.LOST, ended=time.time(), error=seen.reason, metrics=metrics)
            return
        self._remember_gate(job, result)
        event = {"exit_code": result.exit_code, "phases": result.phases, "swept": result.swept, "notes": result.notes}
        self._jobs.change(
            job,
            State(result.state),
            event={**event, "attempts": [_told(attempt) for attempt in result.attempts]},
            started=job.started or result.started,
            ended=result.ended,
            exit_code=result.exit_code,
            error=result.error,
            metrics=metrics,
            phases=result.phases,
        )

    def _remember_gate(self, job: Job, result: Result) -> None:
        word = result.phases.get("gate")
        if word is None:
            return
        with contextlib.suppress(EntryRefused, OSError):
            self._gates.remember(find_entry(job.request, self._settings.roots).fingerprint(), word, job.uid)

    def _folder(self, job: Job) -> JobFolder:
        return JobFolder(self._settings.jobs_dir / job.uid)


def _told(attempt: Any) -> dict[str, Any]:
    return {name: getattr(attempt, name) for name in ("phase", "number", "exit_code", "ended_by", "swept", "error")}
