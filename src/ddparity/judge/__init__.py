"""Judging: reads traces, needs no torch, gives the same verdict for the same files."""

from ._alone import TrialCheck, check_trial
from ._cause import KnownCause
from ._causes import find_cause, known_causes
from ._comm_picture import Bar, CallName, CallsPicture, CallsRow
from ._comm_table import CallRow, CommTable, RankState
from ._compare import compare_trials
from ._data_picture import SampleRow, SamplesPicture, SampleStrip
from ._data_report import AuditRow, DataReport, PassRow, RankRow, report_data
from ._error_map import ErrorCell, ErrorMap
from ._examination import Examination, check_and_measure
from ._memory_picture import MemoryLine, MemoryMark, MemoryPicture
from ._next_trials import PlannedTrial, TrialPlan, VariablePlan, plan_trials
from ._pictures import Comparison, Pictures, compare_and_measure, picture_trial
from ._prove import prove_control
from ._resume import Resumption, judge_resumption
from ._varied import varied_between
from ._verdict import (
    LAYERS,
    Cause,
    Finding,
    Floor,
    LayerVerdict,
    Phase,
    Status,
    Varied,
    Verdict,
)

__all__ = [
    "LAYERS",
    "AuditRow",
    "Bar",
    "CallName",
    "CallRow",
    "CallsPicture",
    "CallsRow",
    "Cause",
    "CommTable",
    "Comparison",
    "DataReport",
    "ErrorCell",
    "ErrorMap",
    "Examination",
    "Finding",
    "Floor",
    "KnownCause",
    "LayerVerdict",
    "MemoryLine",
    "MemoryMark",
    "MemoryPicture",
    "PassRow",
    "Phase",
    "Pictures",
    "PlannedTrial",
    "RankRow",
    "RankState",
    "Resumption",
    "SampleRow",
    "SampleStrip",
    "SamplesPicture",
    "Status",
    "TrialCheck",
    "TrialPlan",
    "VariablePlan",
    "Varied",
    "Verdict",
    "check_and_measure",
    "check_trial",
    "compare_and_measure",
    "compare_trials",
    "find_cause",
    "judge_resumption",
    "known_causes",
    "picture_trial",
    "plan_trials",
    "prove_control",
    "report_data",
    "varied_between",
]
