"""The causes that show before the backward pass: start, data, forward, loss."""

from ._cause import KnownCause

UNTIL_LOSS = (
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
        code="init.tie_lost",
        meaning="A parameter that two modules share in the control is two parameters here: the tie was lost.",
        evidence="The control's model lists the parameter as shared, the candidate's does not, and its gradient is "
        "not the control's.",
        alike=("grad.path: there the parameters are shared alike, and a path of the backward is missing.",),
        fix="Tie the weights again after the model was wrapped, moved or loaded (for example with tie_weights()).",
    ),
    KnownCause(
        code="data.overlap",
        meaning="Several ranks were given the same samples: the data is not sharded by rank.",
        evidence="The same sample identity entered the model on more than one rank in the same step.",
        alike=("data.other_samples: there the ranks share nothing, and their samples are not the control's.",),
        fix="Give the loader a DistributedSampler with this rank and the number of ranks, or slice by rank.",
    ),
    KnownCause(
        code="data.other_samples",
        meaning="This step's samples are not the control's: sampler, seed, epoch or preprocessing differ.",
        evidence="The identities over all ranks are another multiset than the control's, and no two ranks overlap.",
        alike=(
            "data.overlap: there ranks hold copies of each other's samples.",
            "data.unmatched: there nothing in the whole run has a counterpart.",
        ),
        fix="Print the sampler's num_replicas, rank, seed and epoch on every rank, and give both runs the same order.",
    ),
    KnownCause(
        code="data.unmatched",
        meaning="No sample has a counterpart in the control: other order, preprocessing, or slices of samples.",
        evidence="Over all recorded steps not one sample identity is in both runs.",
        alike=("data.other_samples: there some of the samples are the control's.",),
        fix="Make both runs see the same samples: seed the loader alike, switch random augmentation off, same dtype.",
    ),
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
        meaning="Its inputs agree and its output does not: the module mixes samples, draws on a value of its rank, or "
        "computes something else.",
        evidence="Everything before the module agrees with the control, its merged output does not.",
        alike=(
            "bn.local_stats: the same, where the module is a batch norm.",
            "random.masks_differ: there the module draws random numbers.",
        ),
        fix="Put ddparity.mark(name, tensor) inside this module to see which of its tensors differs first.",
    ),
    KnownCause(
        code="forward.ranks_differ",
        meaning="Ranks that hold the same samples computed different outputs.",
        evidence="The sample identities of two ranks are equal, and their outputs of the same module are not.",
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
        code="loss.weighting",
        meaning="Forward agrees but the merged loss does not: ranks or micro-batches are averaged alike although they "
        "hold different numbers of tokens or samples, or the divisor is not the global one.",
        evidence="All activations agree, and the losses, merged by the plan, are not the control's loss.",
        alike=(
            "grad.scaled: there loss and every gradient are off by one and the same factor.",
            "grad.path: there the loss agrees and the gradients do not.",
        ),
        fix="Divide the summed loss by the global number of tokens, times the world size under DDP.",
    ),
    KnownCause(
        code="nonfinite",
        meaning="NaN or infinity where the control has none.",
        evidence="The candidate's digest counts NaN or infinite elements, and the control's counts none.",
        alike=("scaler.scale: a loss scale that overflows is skipped by the scaler and is no fault by itself.",),
        fix="Try float32 or a lower learning rate to see whether the value overflows.",
    ),
)
"""In the order of computation."""
