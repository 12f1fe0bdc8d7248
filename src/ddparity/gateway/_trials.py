"""The trials of the store, and who may see which.

A trial belongs to a job: its training (recorded under the name ``job-<uid>``) or the control that the job proves or is
held against, with the runs beside that control. Whoever owns such a job sees it. Somebody else's trial, one of no job,
and none at all answer alike; only the scope ``admin`` sees all of the store.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddparity._errors import TraceError, TrialNotFound
from ddparity.gateway._job import Job
from ddparity.gateway._jobs import Jobs
from ddparity.gateway._tokens import Caller
from ddparity.trace import TrialFacts
from ddparity.trials import Store, read_facts

_ID = re.compile(r"\d{8}-\d{9}-([A-Za-z0-9_][A-Za-z0-9._-]*)-[0-9a-f]{4}", re.ASCII)
_BESIDE = re.compile(r"\.(repeat|float64|moved)$")
_TRAINING = "job-"
_CHUNK = 200
_MAX_LOOKED_AT = 4000
"""So many trials are looked at for one page; the next page goes on from there."""


class TrialMissing(LookupError):
    """The caller may see no trial of that id."""


@dataclass(frozen=True, kw_only=True)
class SeenTrial:
    """A trial as it stands in a list; ``facts`` is None where its ``trial.json`` cannot be read."""

    id: str
    name: str
    facts: TrialFacts | None
    job: Job | None
    """The job whose training it is."""


@dataclass(frozen=True, kw_only=True)
class TrialList:
    """Some trials, the newest first, and where the next page begins (None at the end)."""

    trials: list[SeenTrial]
    cursor: str | None


@dataclass(frozen=True, kw_only=True)
class JobTrials:
    """The trials of one job: its trainings, the newest first, and the newest of its control."""

    trainings: list[str]
    control: str | None


class Trials:
    """The trials of one store as its callers see them.

    Args:
        store: The store.
        jobs: The jobs, which say whose a trial is.
    """

    def __init__(self, store: Store, jobs: Jobs) -> None:
        self.store = store
        self._jobs = jobs

    def find(self, caller: Caller, trial_id: str) -> Path:
        """Return the folder of a trial.

        Raises:
            TrialMissing: There is none of exactly this id that the caller may see.
        """
        try:
            folder = self.store.path(trial_id)
        except TrialNotFound:
            raise _missing(trial_id) from None
        if folder.is_symlink() or not folder.is_dir() or not self._seen(caller, [trial_id]):
            raise _missing(trial_id)
        return folder

    def page(
        self, caller: Caller, *, prefix: str = "", status: str = "", limit: int = 50, cursor: str | None = None
    ) -> TrialList:
        """Return trials that the caller may see, the newest first.

        Args:
            caller: Who asks.
            prefix: Only those whose name begins so.
            status: Only those of that status.
            limit: At most so many.
            cursor: Only those that are older than the trial of this id.
        """
        ids = [each for each in self.store.ids() if cursor is None or each < cursor]
        found: list[SeenTrial] = []
        last = None
        for start in range(0, min(len(ids), _MAX_LOOKED_AT), _CHUNK):
            chunk = [each for each in ids[start : start + _CHUNK] if name_of(each).startswith(prefix)]
            seen = set(self._seen(caller, chunk))
            jobs = self._jobs.of_uids([uid for each in seen if (uid := _uid(name_of(each)))])
            for trial_id in chunk:
                if trial_id not in seen or self.store.path(trial_id).is_symlink():
                    continue
                facts = self._facts(trial_id)
                if status in ("", "DAMAGED" if facts is None else facts.status.value):
                    name = name_of(trial_id)
                    found.append(SeenTrial(id=trial_id, name=name, facts=facts, job=jobs.get(_uid(name))))
                last = trial_id
                if len(found) == limit:
                    return TrialList(trials=found, cursor=last if last != ids[-1] else None)
            last = ids[min(start + _CHUNK, len(ids)) - 1]
        return TrialList(trials=found, cursor=last if ids and last != ids[-1] else None)

    def job_of(self, trial_id: str) -> Job | None:
        """Return the job whose training a trial is, if there is one."""
        uid = _uid(name_of(trial_id))
        return self._jobs.of_uids([uid]).get(uid) if uid else None

    def of_job(self, job: Job) -> JobTrials:
        """Return the trials of a job."""
        named = {f"{_TRAINING}{job.uid}": list[str](), job.control or "": list[str]()}
        for trial_id in self.store.ids():
            if (name := name_of(trial_id)) in named:
                named[name].append(trial_id)
        controls = named[job.control] if job.control else []
        return JobTrials(trainings=named[f"{_TRAINING}{job.uid}"], control=next(iter(controls), None))

    def visible(self, caller: Caller, ids: Iterable[str]) -> list[str]:
        """Return those of the ids that the caller may see and that are there still."""
        there = {each for each in ids if is_id(each) and (self.store.trials_dir / each).is_dir()}
        return self._seen(caller, sorted(there))

    def _seen(self, caller: Caller, ids: Sequence[str]) -> list[str]:
        if caller.may("admin"):
            return list(ids)
        trainings = {each: uid for each in ids if (uid := _uid(name_of(each)))}
        controls = {each: _BESIDE.sub("", name_of(each)) for each in ids if each not in trainings}
        uids = self._jobs.uids_of(caller.owner, set(trainings.values()))
        names = self._jobs.controls_of(caller.owner, set(controls.values()))
        return [each for each in ids if trainings.get(each) in uids or controls.get(each) in names]

    def _facts(self, trial_id: str) -> TrialFacts | None:
        try:
            return read_facts(self.store.path(trial_id))
        except TraceError:
            return None


def is_id(text: str) -> bool:
    """Return whether a text that a file holds is an id as ours are made: what is not is never looked for."""
    return _ID.fullmatch(text) is not None


def name_of(trial_id: str) -> str:
    """Return the name that is part of an id; an id that is not made as ours are is a name itself."""
    match = _ID.fullmatch(trial_id)
    return trial_id if match is None else match[1]


def _uid(name: str) -> str:
    return name.removeprefix(_TRAINING) if name.startswith(_TRAINING) else ""


def _missing(trial_id: str) -> TrialMissing:
    shown = trial_id[:128].encode("utf-8", "replace").decode()
    return TrialMissing(f"There is no trial {shown!r}. See: ddparity trials list, or GET /api/v1/trials")
