"""The causes that show before the backward pass: start, forward, loss. Those of the data stand by themselves."""

from ._cause import KnownCause

AT_START = (
    KnownCause(
        code="init.differs",
        meaning="The runs do not start from the same parameters: seed, order of construction or loading differ.",
        evidence="A parameter's digest before the first step is not the control's, and all ranks hold the same one.",
        alike=(
            "init.ranks_differ: there the ranks differ from each other too.",
            "opt.update: there the runs start alike and part after a step.",
        ),
        fix="Seed before the model is built, on every rank alike, and load the same checkpoint.",
    ),
    KnownCause(
        code="init.ranks_differ",
        meaning="The ranks do not start from the same parameters, and no wrapper broadcast them.",
        evidence="Before the first step two ranks that should hold copies of a parameter hold different ones.",
        alike=(
            "init.differs: there the ranks agree, and only the control differs.",
            "opt.ranks_differ: there they start alike and part after a step.",
        ),
        fix="Seed every rank alike before the model is built, or broadcast rank 0's parameters before the first step.",
    ),
    KnownCause(
        code="init.buffer_ranks_differ",
        meaning="The ranks do not start from the same buffers, and no wrapper broadcasts them.",
        evidence="Before the first step two ranks hold different values of a buffer, such as running statistics.",
        alike=(
            "init.ranks_differ: the same of a parameter.",
            "buffer.ranks_differ: there they start alike, and a step parts them.",
        ),
        fix="Load the buffers on every rank alike (they are part of state_dict()), or broadcast rank 0's.",
    ),
    KnownCause(
        code="init.buffer_differs",
        meaning="The runs do not start from the same buffers: they were not loaded, or computed otherwise.",
        evidence="Before the first step a buffer, the same on all ranks, is not the control's.",
        alike=(
            "init.differs: the same of a parameter.",
            "buffer.differs: there they start alike, and a step updates them otherwise.",
        ),
        fix="Save and load state_dict() of the whole model: parameters() leaves buffers out.",
    ),
    KnownCause(
        code="init.tie_lost",
        meaning="A parameter that two modules share in the control is two parameters here: the tie was lost.",
        evidence="The control's model lists the parameter as shared, the candidate's does not, and its gradient is "
        "not the control's.",
        alike=("grad.path: there the parameters are shared alike, and a path of the backward is missing.",),
        fix="Tie the weights again after the model was wrapped, moved or loaded (for example with tie_weights()).",
    ),
)
"""At the start."""

UNTIL_LOSS = (
    KnownCause(
        code="bn.local_stats",
        meaning="A batch norm normalises with each rank's own samples; one device uses the whole batch's.",
        evidence="Inputs agree, and the first output that does not is that of a batch norm.",
        alike=(
            "forward.batch_coupled: another module that mixes the samples of a batch.",
            "buffer.ranks_differ: running statistics that differ although the outputs agree.",
        ),
        fix="Convert with torch.nn.SyncBatchNorm.convert_sync_batchnorm, or accept statistics a rank.",
    ),
    KnownCause(
        code="forward.batch_coupled",
        meaning="What was compared before it agrees and its output does not: it, or what is computed on the way to it, "
        "mixes samples, draws on a value of its rank, or is something else.",
        evidence="Everything before the module agrees with the control, its merged output does not.",
        alike=(
            "bn.local_stats: the same, where the module is a batch norm.",
            "random.masks_differ: there the module draws random numbers.",
        ),
        fix="Put ddparity.mark(name, tensor) inside this module, and before it, to see which tensor differs first.",
    ),
    KnownCause(
        code="forward.ranks_differ",
        meaning="Ranks computed different outputs of the same samples, or of what depends on none (positions).",
        evidence="The outputs of a module differ between ranks whose sample identities are equal, or although they do "
        "not change with the batch.",
        alike=(
            "random.masks_differ: there the module draws random numbers.",
            "init.ranks_differ: there the parameters differ already.",
        ),
        fix="Look for values that depend on the rank inside this module; ddparity.mark(name, tensor) narrows it down.",
    ),
    KnownCause(
        code="random.masks_differ",
        meaning="Ranks that hold the same samples drew different random masks: their generators are not in the same "
        "state.",
        evidence="Samples and inputs of the ranks agree, the module draws random numbers, and the outputs differ.",
        alike=("forward.ranks_differ: there the module draws nothing.",),
        fix="Seed the generator of these ranks alike (tensor-parallel ranks draw the same masks).",
    ),
    KnownCause(
        code="forward.not_reduced",
        meaning="Each rank goes on with its own addend: the output of a layer that is split over its inputs is not "
        "summed over the ranks.",
        evidence="The layer's outputs, summed over the ranks, are the control's; what is computed from them differs "
        "between ranks.",
        alike=("forward.ranks_differ: there the ranks' outputs do not add up to the control's.",),
        fix="Reduce the output over the tensor-parallel group before a norm, a residual or another layer takes it.",
    ),
    KnownCause(
        code="loss.weighting",
        meaning="Forward agrees but the merged loss does not: ranks or micro-batches are averaged alike although they "
        "hold different numbers of tokens or samples, the divisor is not the global one, or the targets are not those "
        "of these samples.",
        evidence="All activations agree, and the losses, merged by the plan, are not the control's loss.",
        alike=(
            "grad.scaled: there loss and every gradient are off by one and the same factor.",
            "grad.path: there the loss agrees and the gradients do not.",
        ),
        fix="Divide the summed loss by the global number of tokens, times the world size under DDP; check that targets "
        "were shifted before they were cut, and stand in the order of the micro-batches.",
    ),
    KnownCause(
        code="nonfinite",
        meaning="NaN or infinity where the control has none.",
        evidence="The candidate's digest counts NaN or infinite elements, and the control's counts none.",
        alike=("scaler.scale: a loss scale that overflows is skipped by the scaler and is no fault by itself.",),
        fix="Try float32 or a lower learning rate to see whether the value overflows.",
    ),
)
"""In the forward pass and the loss, in the order of computation."""
