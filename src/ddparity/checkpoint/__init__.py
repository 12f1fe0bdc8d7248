"""Integrity of checkpoints: a seal, written last, that says which files belong to one save and what is in them.

``torch.distributed.checkpoint`` loads a directory that is half old and half new after a crash in its second save, and
a shard with flipped bits, without an error. A seal finds both before training resumes. No torch, no pickle.
"""

from ddparity.checkpoint._hook import seal_checkpoint, verify_checkpoint
from ddparity.checkpoint._seal import Seal, SealedFile, read_seal, seal, seal_path
from ddparity.checkpoint._verify import Condition, Fault, Report, verify

__all__ = [
    "Condition",
    "Fault",
    "Report",
    "Seal",
    "SealedFile",
    "read_seal",
    "seal",
    "seal_checkpoint",
    "seal_path",
    "verify",
    "verify_checkpoint",
]
