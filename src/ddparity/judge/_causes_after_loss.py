"""The causes that show in the backward pass and after it: gradients, clipping, optimizer, buffers."""

from ._cause import KnownCause

AFTER_LOSS = (
    KnownCause(
        code="grad.none_synced",
        meaning="No gradient is reduced: each rank steps with its own. The wrapper's forward is bypassed, its hooks do "
        "not fire, or the reduction is missing.",
        evidence="On every rank every synchronised gradient is that rank's local one, and the ranks' differ.",
        alike=(
            "grad.unsynced: there only some parameters are left out.",
            "grad.reduction_lost: there the own gradient was divided by the number of ranks.",
        ),
        fix="Call the wrapper and not the module inside it, and check that no_sync() does not cover the last backward.",
    ),
    KnownCause(
        code="grad.unsynced",
        meaning="This gradient is each rank's own: no reduction covers the parameter.",
        evidence="Each rank's synchronised gradient of this parameter is its local one; other parameters' are reduced.",
        alike=(
            "grad.none_synced: there no parameter is reduced.",
            "grad.ranks_differ: there what the ranks hold is not their own local gradient either.",
        ),
        fix="Take the parameter out of the wrapper's ignore list, or register it before the model is wrapped.",
    ),
    KnownCause(
        code="grad.reduction_lost",
        meaning="This gradient is each rank's own, divided by the number of ranks as for an average: its reduction was "
        "not waited for, or reduced a copy.",
        evidence="Each rank's synchronised gradient is its local one times 1/N, N the number of ranks.",
        alike=("grad.unsynced: there the factor is 1.",),
        fix="Wait for the asynchronous reduction before the step, and reduce the tensor that the optimizer reads.",
    ),
    KnownCause(
        code="grad.ranks_differ",
        meaning="The ranks hold different results of the reduction of this gradient.",
        evidence="Synchronised gradients differ over the ranks, and none is the rank's local one times a factor.",
        alike=(
            "grad.unsynced: there each rank holds its own local gradient.",
            "clip.local_norm: there each rank's gradients are all the control's times one factor of the rank.",
        ),
        fix="Check that all ranks reduce over the same group, in the same order, and change nothing afterwards.",
    ),
    KnownCause(
        code="grad.summed",
        meaning="Gradients are summed over the ranks, not averaged.",
        evidence="Every gradient is N times the control's, N the number of ranks, and the merged local ones agree.",
        alike=(
            "grad.scaled: there the factor is another number.",
            "loss.weighting: there the loss is off as well, and not by the same factor.",
        ),
        fix="Divide the reduced gradients by the number of ranks, or reduce with ReduceOp.AVG.",
    ),
    KnownCause(
        code="grad.double_averaged",
        meaning="Gradients are averaged twice: once by hand and once by the wrapper.",
        evidence="Every gradient is 1/N times the control's, N the number of ranks.",
        alike=("grad.scaled: there the factor is another number, such as one over the accumulation steps.",),
        fix="Do not divide the loss or the gradients by the world size under a wrapper that averages.",
    ),
    KnownCause(
        code="grad.scaled",
        meaning="Every gradient is the control's times one factor: loss or gradients are scaled once too often or not "
        "at all.",
        evidence="One factor relates every gradient to the control's within the floor, and it is no power of N.",
        alike=(
            "grad.summed: the factor is the number of ranks.",
            "grad.double_averaged: the factor is one over the number of ranks.",
        ),
        fix="Divide the loss once by the number of micro-batches, and unscale gradients exactly once.",
    ),
    KnownCause(
        code="grad.fixed_divisor",
        meaning="The loss is divided by a fixed number of micro-batches, and this step has another number of them.",
        evidence="Every gradient is off by the number of this step's micro-batches over that of an earlier step, which "
        "agreed.",
        alike=(
            "grad.double_averaged: there the factor is one over the number of ranks, in every step.",
            "grad.scaled: there the number of micro-batches does not explain the factor.",
        ),
        fix="Divide by the number of micro-batches, or better of samples, that this step has: the last of an epoch has "
        "fewer.",
    ),
    KnownCause(
        code="grad.missing",
        meaning="The control has a gradient here and the candidate has none: the parameter is not reached, is frozen, "
        "or was replaced by a copy.",
        evidence="The control recorded a gradient of this parameter and at least one rank recorded none.",
        alike=("opt.not_held: there the gradient is there, and the optimizer does not hold the parameter.",),
        fix="Check requires_grad and that the forward still uses this parameter, on every rank.",
    ),
    KnownCause(
        code="grad.low_precision",
        meaning="Local gradients agree, the reduced ones are off by about one rounding to 16 bits: the reduction runs "
        "in lower precision.",
        evidence="The merged local gradients are the control's, and the reduced ones miss them by 2^-13 to 2^-6.",
        alike=("grad.wrong_reduction: there the reduced gradients are off by more than a rounding.",),
        fix="Reduce in float32 (drop the fp16 or bf16 hook, or set reduce_dtype), or accept the rounding.",
    ),
    KnownCause(
        code="grad.wrong_reduction",
        meaning="Local gradients agree, the reduced ones do not: wrong group, buffer, divisor or time.",
        evidence="The merged local gradients are the control's; the reduced ones, equal on all ranks, are not.",
        alike=(
            "grad.summed: the reduced gradients are all N times the control's.",
            "grad.path: there the local gradients are wrong already.",
        ),
        fix="Look at who reduces this gradient, over which group, with which divisor, and when it is read.",
    ),
    KnownCause(
        code="grad.path",
        meaning="Forward and loss agree and the gradient does not: part of the backward path is cut or doubled, as by "
        "a collective without gradient, a detach, or a custom autograd function.",
        evidence="Activations and loss agree, and the merged local gradients are not the control's.",
        alike=(
            "grad.wrong_reduction: there the local gradients agree.",
            "loss.weighting: there the loss does not agree.",
        ),
        fix="Look for detach(), no_grad, and collectives without a backward at the point where the gradient parts.",
    ),
    KnownCause(
        code="clip.scaled_gradients",
        meaning="Gradients were clipped while they were still multiplied by the loss scale.",
        evidence="The norm that clipping saw is the control's times the loss scale.",
        alike=("clip.norm: there the factor is not the loss scale.",),
        fix="Unscale before clipping: scaler.unscale_(optimizer), then clip_grad_norm_.",
    ),
    KnownCause(
        code="clip.local_norm",
        meaning="Each rank clips with the norm of its own part of the gradients.",
        evidence="Each rank's gradients are the control's times one factor, and the factor differs over the ranks.",
        alike=(
            "clip.norm: there all ranks clip with one norm, and it is not the control's.",
            "grad.ranks_differ: there no one factor a rank explains its gradients.",
        ),
        fix="Clip with the norm over all ranks: reduce the squared norms before the root is taken.",
    ),
    KnownCause(
        code="clip.every_micro_batch",
        meaning="Gradients are clipped after each micro-batch, before all that belongs to the step is accumulated.",
        evidence="The clipping function was called before the last backward pass of the step; the control calls it "
        "after it.",
        alike=(
            "clip.norm: there clipping comes at the end of the step.",
            "clip.missing: there the numbers of calls differ, and none comes before the last backward.",
        ),
        fix="Clip once a step, after the last micro-batch (with Accelerate: if accelerator.sync_gradients).",
    ),
    KnownCause(
        code="clip.before_reduction",
        meaning="Each rank clips its own gradients before they are reduced: what is averaged was cut by another factor "
        "on every rank.",
        evidence="When clipping is called every gradient is that rank's local one; those that the optimizer reads are "
        "the same on all ranks.",
        alike=(
            "grad.none_synced: there the optimizer reads each rank's own gradients too.",
            "clip.local_norm: there gradients are reduced before they are clipped.",
        ),
        fix="Reduce the gradients first, then clip: all ranks then see one norm.",
    ),
    KnownCause(
        code="clip.norm",
        meaning="The norm that gradients are clipped with is not the control's although the gradients are.",
        evidence="Gradients agree before clipping; the total norm, equal on all ranks, does not.",
        alike=(
            "clip.local_norm: there the norm differs over the ranks.",
            "clip.scaled_gradients: there the factor is the loss scale.",
        ),
        fix="Count every parameter once in the norm, replicas and shards alike, and use the same norm type.",
    ),
    KnownCause(
        code="clip.missing",
        meaning="The control clips gradients here and the candidate does not, or the other way round.",
        evidence="The number of calls of the clipping function in this step is not the control's.",
        alike=("clip.coefficient: there both clip, and to different lengths.",),
        fix="Clip in both runs, once a step, after the last micro-batch.",
    ),
    KnownCause(
        code="clip.coefficient",
        meaning="Gradients agree before clipping or unscaling, and not after it.",
        evidence="Synchronised gradients and norms agree, and those that the optimizer reads do not.",
        alike=("clip.norm: there the norm itself differs.",),
        fix="Compare max_norm, norm_type and the loss scale of both runs, and look for changes between clip and step.",
    ),
    KnownCause(
        code="scaler.skipped",
        meaning="A gradient scaler skips the update on some ranks and not on others, or not as the control does: each "
        "rank looks for infinities in its own gradients.",
        evidence="The update of this step was skipped on one side and made on the other.",
        alike=("scaler.scale: there all make the update, and the scale differs.",),
        fix="Let the ranks agree: unscale after the reduction, or reduce found_inf over the ranks with MAX.",
    ),
    KnownCause(
        code="scaler.scale",
        meaning="The loss scale is not the control's.",
        evidence="The scale that gradients were divided by differs.",
        alike=("opt.lr: another factor of the update, and not of the gradients.",),
        fix="Give the scaler the same init_scale in both runs, and let all ranks skip the same steps.",
    ),
    KnownCause(
        code="opt.lr",
        meaning="The learning rate is not the control's: the scheduler is stepped at other times or counts other "
        "steps.",
        evidence="The learning rate that the optimizer stepped with differs, and the numbers before it agree.",
        alike=("opt.hyper_parameter: there another setting of the optimizer differs.",),
        fix="Step the scheduler once a training step, and count its steps alike at every world size.",
    ),
    KnownCause(
        code="opt.hyper_parameter",
        meaning="A hyper-parameter of the optimizer is not the control's.",
        evidence="A value in the optimizer's parameter groups differs at this step.",
        alike=("opt.lr: the same for the learning rate.",),
        fix="Print optimizer.param_groups in both runs, and give both the same settings.",
    ),
    KnownCause(
        code="opt.not_held",
        meaning="The optimizer does not update this parameter: it was built before the parameter was replaced, or "
        "holds other objects.",
        evidence="The control updates the parameter; here it does not move, or no optimizer holds it.",
        alike=(
            "grad.missing: there the parameter has no gradient either.",
            "opt.update: there it moves, and elsewhere.",
        ),
        fix="Build the optimizer from the parameters of the model that is trained, after it was moved and wrapped.",
    ),
    KnownCause(
        code="opt.ranks_differ",
        meaning="Gradients and hyper-parameters agree over the ranks, and the updated parameters do not: optimizer "
        "state differs between the ranks.",
        evidence="Gradients and settings are equal on the ranks, and the parameters after the step, or the state, are "
        "not.",
        alike=("init.ranks_differ: there the parameters differ before the step.",),
        fix="Load or build the optimizer's state alike on every rank.",
    ),
    KnownCause(
        code="opt.update",
        meaning="Gradients and hyper-parameters agree with the control's, and the updated parameters do not.",
        evidence="Everything before the step agrees; the parameters after it, equal on all ranks, do not.",
        alike=(
            "opt.not_held: there the parameter does not move at all.",
            "opt.state: there the optimizer's state is off.",
        ),
        fix="Compare the optimizers' classes and states, and look for what changes parameters outside the step.",
    ),
    KnownCause(
        code="opt.changed_on_ranks",
        meaning="Something other than the optimizer changed the parameter between two steps, and the ranks hold "
        "different values since: it ran on some ranks only, or from what each rank holds alone.",
        evidence="The optimizer left equal parameters on all ranks; as the next step begins they differ.",
        alike=(
            "opt.ranks_differ: there the optimizer's step itself leaves them apart.",
            "init.ranks_differ: there they differ before the first step.",
        ),
        fix="Look for what writes parameters outside of optimizer.step() (clipping or pruning of weights, a teacher or "
        "average that follows, a checkpoint loaded again), and run it on every rank, from synchronised values.",
    ),
    KnownCause(
        code="opt.changed_after",
        meaning="Between two steps something other than the optimizer changes the parameter in one of the runs and not "
        "in the other, or to other values.",
        evidence="The optimizer left the control's parameter; as the next step begins it is, on all ranks, another.",
        alike=("opt.update: there the optimizer's step itself leaves another value.",),
        fix="Look for what writes parameters outside of optimizer.step(), and do it alike at every world size.",
    ),
    KnownCause(
        code="opt.step_count",
        meaning="The optimizer has counted another number of steps than the control's: its state was not restored, or "
        "not whole, so that its moments are corrected as if it had just begun.",
        evidence="The count of steps in the optimizer's state, read before the update, is none of the control's.",
        alike=("opt.state: there the count agrees, and the moments do not.",),
        fix="Load optimizer.state_dict() as it was saved, its `step` entries included, on every rank.",
    ),
    KnownCause(
        code="opt.state",
        meaning="The optimizer's state is not the control's.",
        evidence="Parameters and gradients agree, and a tensor of the optimizer's state does not.",
        alike=("opt.update: there the parameters are off as well.",),
        fix="Restore the optimizer's state together with the model's, and shard it as the parameters are.",
    ),
    KnownCause(
        code="buffer.ranks_differ",
        meaning="A buffer is updated from each rank's own samples, and nothing merges it.",
        evidence="The buffer's digest differs over the ranks after the step.",
        alike=("bn.local_stats: the same samples-a-rank statistics, seen in the output.",),
        fix="Reduce the buffer over the ranks before it is used or saved.",
    ),
    KnownCause(
        code="buffer.differs",
        meaning="A buffer is not the control's.",
        evidence="The buffer is equal on all ranks and not the control's.",
        alike=("buffer.ranks_differ: there the ranks differ from each other.",),
        fix="Look at what updates this buffer, and how often a step.",
    ),
)
"""In the order of computation."""
