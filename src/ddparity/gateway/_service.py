"""The gateway without its web side: database, jobs, slots, tokens, engines and the loop that moves jobs on."""

from ddparity.gateway._crash import crash_point
from ddparity.gateway._database import Database
from ddparity.gateway._dispatcher import Dispatcher
from ddparity.gateway._engine import Engine
from ddparity.gateway._entries import EntryRefused, find_entry, refused_variables
from ddparity.gateway._gates import Gates
from ddparity.gateway._job import Job
from ddparity.gateway._jobs import Jobs
from ddparity.gateway._judging import Judging
from ddparity.gateway._local import LocalEngine
from ddparity.gateway._request import JobRequest
from ddparity.gateway._settings import Settings
from ddparity.gateway._slots import Slots, found_slots
from ddparity.gateway._slurm import SlurmEngine
from ddparity.gateway._tokens import Tokens
from ddparity.gateway._trials import Trials
from ddparity.gateway.supervisor import JobFolder
from ddparity.trials import Store
from ddparity.trials._ladders import Ladders


class Service:
    """One gateway.

    Args:
        settings: Its settings.

    Raises:
        UsageError: The database or the store cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        settings.jobs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.settings = settings
        self.database = Database(settings.url)
        self.jobs = Jobs(self.database)
        self.slots = Slots(self.database)
        self.tokens = Tokens(self.database)
        self.declared = found_slots(settings.slots)
        self.engines: dict[str, Engine] = {"local": LocalEngine(settings.jobs_dir)}
        if settings.slurm:
            self.engines["slurm"] = SlurmEngine(settings.jobs_dir, settings.slurm_options)
        store = Store(settings.store)
        self.trials = Trials(store, self.jobs)
        self.ladders = Ladders(store)
        self.judging = Judging(store.root, settings.judge_timeout_s)
        gates = Gates(self.database, store)
        self.dispatcher = Dispatcher(self.jobs, self.slots, gates, self.engines, settings)

    def start(self) -> None:
        """Bring the database up to date and move jobs on from where they were left."""
        self.database.migrate()
        self.slots.declare(self.declared)
        self.dispatcher.start()

    def stop(self) -> None:
        """Let go of everything; jobs run on under their supervisors."""
        self.dispatcher.stop()
        self.database.close()

    @property
    def most_slots(self) -> int:
        """How many slots one job can ever have."""
        limit = self.settings.max_owner_slots
        return len(self.declared) if limit is None else min(len(self.declared), limit)

    def submit(self, request: JobRequest, owner: str) -> Job:
        """Take a job in.

        Raises:
            EntryRefused: What was asked for may not be run here, or never could be.
            JobExists: The owner has a job of that name.
            QueueFull: Too many jobs wait.
        """
        self._check(request)
        crash_point("before-insert")
        job = self.jobs.submit(
            request,
            owner,
            num_slots=request.world_size if request.engine == "local" else 0,
            max_owner_queued=self.settings.max_owner_queued,
            max_queued=self.settings.max_queued,
        )
        crash_point("after-insert")
        self.dispatcher.wake()
        return job

    def cancel(self, owner: str, job_id: str, by: str) -> Job:
        """Ask for a job's end.

        Raises:
            JobMissing: The owner has no such job.
        """
        job = self.jobs.cancel(owner, job_id, by)
        self.dispatcher.wake()
        return job

    def folder(self, job: Job) -> JobFolder:
        """Return a job's folder; it is there once the job was given to an engine."""
        return JobFolder(self.settings.jobs_dir / job.uid)

    def _check(self, request: JobRequest) -> None:
        """Refuse what could never run, at once and not when its turn comes."""
        find_entry(request, self.settings.roots)
        if reason := refused_variables(list(request.env), self.settings.allowed_env):
            raise EntryRefused(reason)
        if request.engine not in self.engines:
            raise EntryRefused(f"engine {request.engine!r} is not set up here; there is: {', '.join(self.engines)}")
        if request.engine != "local":
            return
        if request.world_size > self.most_slots:
            most = f"one owner can have {self.most_slots} slots"
            raise EntryRefused(f"world_size {request.world_size} can never run here: {most}")
