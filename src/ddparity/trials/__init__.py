"""Trials: where they are kept, how a command becomes one, and the index of them."""

from ddparity.trials._launch import outcome
from ddparity.trials._ledger import Comparison, ComparisonRow, Ledger, TrialRow
from ddparity.trials._runner import rank_folders, record, uninterrupted
from ddparity.trials._spec import LEVELS, RecordSpec
from ddparity.trials._store import Store, check_name, new_trial_id, read_facts

__all__ = [
    "LEVELS",
    "Comparison",
    "ComparisonRow",
    "Ledger",
    "RecordSpec",
    "Store",
    "TrialRow",
    "check_name",
    "new_trial_id",
    "outcome",
    "rank_folders",
    "read_facts",
    "record",
    "uninterrupted",
]
