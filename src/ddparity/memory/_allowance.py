"""What no CPU can know of a device, as numbers that stand in the report and can be replaced.

The defaults are rules of thumb, rounded up and not measured here: the context of CUDA 12 takes 0.4 to 0.6 GiB,
workspaces of cuBLAS 8 to 64 MiB and those of cuDNN up to hundreds, NCCL's buffers and channels 0.2 to 0.6 GiB for the
first groups. One measured point of the user's own is worth more than all of them.
"""

from dataclasses import dataclass, field

MIB = 1 << 20
_CONTEXT, _WORKSPACES, _NCCL = 600 * MIB, 256 * MIB, 512 * MIB
_FRAGMENTATION = 0.05


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """Bytes that come on top of every batch, and a share of what is predicted.

    Attributes:
        fixed: Name -> bytes, the same for every batch; negative where a measurement was below the prediction.
        share: Share of the predicted peak, for fragmentation.
        source: ``default``, ``given``, ``none``, or what was measured.
    """

    fixed: dict[str, int] = field(default_factory=dict)
    share: float = 0.0
    source: str = "none"

    def total(self, peak: float) -> float:
        """Return a peak with the allowance on top."""
        return peak * (1 + self.share) + sum(self.fixed.values())


def default_allowance(device: str, num_ranks: int) -> Allowance:
    """Return what is added where nothing was given or measured: nothing on a CPU."""
    if device == "cpu":
        return Allowance()
    fixed = {"CUDA context": _CONTEXT, "library workspaces": _WORKSPACES}
    if num_ranks > 1:
        fixed["NCCL buffers"] = _NCCL
    return Allowance(fixed=fixed, share=_FRAGMENTATION, source="default")


def given_allowance(num_bytes: int) -> Allowance:
    """Return an allowance that the user named."""
    return Allowance(fixed={"allowance": num_bytes} if num_bytes else {}, source="given")


def measured_allowance(batch: int, measured: int, predicted: float) -> Allowance:
    """Return what a measured peak was beyond the prediction for the same batch."""
    more = round(measured - predicted)
    return Allowance(fixed={"measured beyond the prediction": more}, source=f"measured at batch {batch}")
