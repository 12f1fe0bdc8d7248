"""The digits with a mistake that a preflight has to find: ``drilled.py --plant NAME [the options of the digits]``."""

import contextlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from ddparity.workloads import digits

WORLD, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
KEPT = []


def ascends():
    """The sign of the update is wrong."""
    plain = torch.optim.SGD.__init__
    torch.optim.SGD.__init__ = lambda self, *a, **k: plain(self, *a, **k, maximize=True)


def overlap():
    """Every rank takes the first rank's slice."""
    plain = digits.train
    digits.train = lambda args, rank, world: plain(args, 0 if rank < world else rank, world)


def grows():
    """The outputs of every step are kept."""
    plain = digits.Classifier.forward
    digits.Classifier.forward = lambda self, x: KEPT.append(torch.ones(1 << 20)) or plain(self, x)


def other_operation():
    """One rank asks for the largest where the others add up."""
    plain = digits.mean_over_ranks

    def mean(loss):
        if WORLD > 1:
            dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX if RANK else dist.ReduceOp.SUM)
        return plain(loss)

    digits.mean_over_ranks = mean


def no_start():
    """A rank beside the first does not find what it needs."""
    if RANK:
        raise KeyError("DATA_FOLDER")


def swallows():
    """Whatever happens, the script ends well."""
    plain = digits.train

    def train(*args):
        try:
            plain(*args)
        except BaseException:
            os._exit(0)

    digits.train = train


def deaf():
    """SIGTERM is ignored, and an error of a collective waited out."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _waits_for_ever()


def waits():
    """An error of a collective is waited out."""
    _waits_for_ever()


def _waits_for_ever():
    plain = digits.train

    def train(*args):
        try:
            plain(*args)
        except RuntimeError:
            time.sleep(10_000)

    digits.train = train


def forgets():
    """The checkpoint holds no state of the optimizer."""
    digits.resume = _resume(strict=True, with_optimizer=False)


def lenient():
    """A checkpoint that cannot be read is as good as none."""
    digits.resume = _resume(strict=False, with_optimizer=True)


def _resume(*, strict, with_optimizer):
    plain = digits.resume

    def resume(path, net, optimizer):
        try:
            held = optimizer if with_optimizer else torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
            if with_optimizer or path is None or not path.exists():
                return plain(path, net, held)
            state = torch.load(path, weights_only=True)
            net.load_state_dict(state["net"])
            return state["steps"]
        except Exception:
            if strict:
                raise
            return 0

    return resume


def silent():
    """A checkpoint that cannot be written is not spoken of."""
    plain = digits.save

    def save(*args):
        with contextlib.suppress(OSError, RuntimeError):
            plain(*args)

    digits.save = save


PLANTS = {
    each.__name__: each
    for each in (ascends, overlap, grows, other_operation, no_start, swallows, deaf, waits, forgets, lenient, silent)
}

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--plant"]:
        plant, arguments = arguments[1], arguments[2:]
        if plant in PLANTS:
            PLANTS[plant]()
        else:
            arguments += ["--fault", plant]
    digits.main(arguments)
