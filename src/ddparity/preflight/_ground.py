"""What rows share: the control, the rehearsal and its verdict, the checkpoints that were saved."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ddparity.judge import Verdict, compare_trials
from ddparity.preflight._spec import PreflightSpec
from ddparity.trace import Trial, read_trial
from ddparity.trace._schema import TrialFacts
from ddparity.trials._ladder import trial_of
from ddparity.trials._runner import record, uninterrupted
from ddparity.trials._spec import RecordSpec


@dataclass
class Ground:
    """What has been settled so far.

    Attributes:
        spec: What is reviewed.
        saved: A folder with the checkpoints that a run has left, or None.
    """

    spec: PreflightSpec
    saved: Path | None = None

    @cached_property
    def control(self) -> tuple[TrialFacts, bool]:
        """The control's facts, and whether the store had it."""
        facts, reused = trial_of(self.spec.climb(1), self.spec.alone)
        return uninterrupted(facts), reused

    @cached_property
    def rehearsal(self) -> TrialFacts:
        """The launch, for a few steps."""
        return self.run("rehearsal", self.spec.target.command, steps="3", stop_after_steps=self.spec.steps)

    @cached_property
    def verdict(self) -> Verdict:
        """The rehearsal against the control, or against itself where there is none."""
        folder = self.folder(self.rehearsal)
        alone = self.folder(self.control[0]) if "control" in self.__dict__ else folder
        return compare_trials(alone, folder)

    def run(self, kind: str, command: list[str], **options: Any) -> TrialFacts:
        """Record a command; its output stays in the trial."""
        usual: dict[str, Any] = {"prove": False, "quiet": True, "timeout_s": self.spec.timeout_s, "steps": "1"}
        name = f"{self.spec.name}-{kind}"
        return uninterrupted(record(RecordSpec(command=command, store=self.spec.store, name=name, **(usual | options))))

    def folder(self, facts: TrialFacts) -> Path:
        """Return the folder of a trial."""
        return self.spec.store.path(facts.id)

    def trial(self, facts: TrialFacts) -> Trial:
        """Return a trial's trace."""
        return read_trial(self.folder(facts))

    def log(self, facts: TrialFacts) -> str:
        """Return where the output of a trial's command is, for a sentence."""
        return f"its output: {self.folder(facts) / 'private' / 'output.log'}"
