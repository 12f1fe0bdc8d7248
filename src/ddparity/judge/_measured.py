"""Measured noise floors: what rounding makes of a control, seen in runs of the control itself.

``record --control --floor`` leaves two runs beside a control: one in float64, whose distance is the rounding of the
control itself, and one whose inputs were moved by one unit in the last place, whose distance is what the training
makes of rounding at its door. Each is held against the control as a candidate would be, by the same relative errors;
the larger of the two is what the control's own noise is known to reach. Measured in float32 and bfloat16 a healthy
candidate's error stayed within 1.23 of the control's own error against float64, and within 0.51 of what moved inputs
make; four times the measured error is the floor.
"""

from collections.abc import Iterator

from ddparity.digest import relative_error
from ddparity.trace import Site

from ._context import StepContext, Tally
from ._floors import HIDES, LOSS, Measured
from ._forward import calls_of, merge_activation
from ._gradients import measure
from ._logical import merge_parameter
from ._loss import loss_scale, loss_values
from ._run import Run
from ._steps import context_of, floors_of, steps_of


def measure_floors(control: Run, runs: dict[str, Run]) -> Measured | None:
    """Hold runs of the control itself against it.

    Args:
        control: The control.
        runs: ``float64`` and ``moved``, as far as they are there.

    Returns:
        The errors, or None if no run can be held against the control.
    """
    measured = Measured()
    for kind, run in runs.items():
        tally, floors = Tally(), floors_of(control, run)
        for step in steps_of(control, run):
            ctx = context_of(step, control, run, floors, tally)
            if not ctx.samples.proved:
                break
            for site, name, error in _errors(ctx):
                measured.add(kind, step, site, name, error)
    return measured if measured.errors else None


def _errors(ctx: StepContext) -> Iterator[tuple[str, str, float]]:
    for (name, part), call, rows in ctx.calls(Site.ACTIVATION):
        pair = merge_activation(ctx, rows, calls_of(ctx, Site.ACTIVATION, name, part, call))
        if not isinstance(pair, str):
            error = relative_error(pair[1], pair[0])
            if not error <= HIDES:  # another random mask, or a training that rounding drives anywhere
                return
            yield Site.ACTIVATION, name, error
    values = loss_values(ctx)
    if values is not None:
        yield LOSS, LOSS, abs(values[1] - values[0]) / loss_scale(ctx)
    for name in ctx.backward_order():
        row = measure(ctx, name)
        if row is not None and not row.noise and not row.missing:
            yield Site.SYNCED_GRADIENT, name, row.error
    for (name, part), rows in ctx.control.digests.get(Site.PARAMETER_AFTER, {}).items():
        logical = merge_parameter(ctx.held(Site.PARAMETER_AFTER, name, part))
        if logical is not None and not logical.reason and logical.digest.shape == rows[-1].digest.shape:
            yield Site.PARAMETER_AFTER, name, relative_error(logical.digest, rows[-1].digest)
