"""The causes of the data layer: loaders, samplers, worker processes, evaluation, resuming."""

from ._cause import KnownCause

DATA = (
    KnownCause(
        code="data.overlap",
        meaning="Several ranks were given the same samples: the data is not sharded by rank.",
        evidence="All ranks hold the same multiset of sample identities, and their gradients are averaged.",
        alike=(
            "data.sampler_differs: there the ranks share some samples only.",
            "data.workers_copy: there a single rank holds a sample several times.",
        ),
        fix="Give the loader a DistributedSampler with this rank and the number of ranks, or slice by rank; an "
        "IterableDataset has to skip what belongs to other ranks itself.",
    ),
    KnownCause(
        code="data.sampler_differs",
        meaning="The ranks' shares overlap, and other samples are never seen: they are drawn from differently shuffled "
        "orders, or cut at wrong bounds.",
        evidence="In one step or epoch some samples are on several ranks and others on none, while every rank holds "
        "samples of its own too.",
        alike=("data.overlap: there all ranks hold the same samples.",),
        fix="Give the sampler, and any random split before it, the same seed and generator on every rank, and the same "
        "shuffle; where shares are cut by hand, check their first and last index.",
    ),
    KnownCause(
        code="data.workers_copy",
        meaning="Loader workers deliver the same samples: an IterableDataset is not sharded by worker.",
        evidence="Within one rank and epoch samples come as often as there are workers.",
        alike=("data.overlap: there the copies are on different ranks.",),
        fix="Shard by torch.utils.data.get_worker_info() in the dataset's __iter__, together with the rank.",
    ),
    KnownCause(
        code="data.rng_copied",
        meaning="Workers, ranks or epochs draw the same random numbers: augmentation repeats on different samples.",
        evidence="A generator that the dataset draws from was in the same state before, and after, the first fetch of "
        "several workers, ranks or epochs, which fetched different samples.",
        alike=("data.overlap: there the samples themselves are copies.",),
        fix="Seed what the dataset draws from in worker_init_fn, by torch.initial_seed() (it differs by worker and "
        "epoch) and the rank, or draw from a generator made of seed, epoch and index.",
    ),
    KnownCause(
        code="data.not_covered",
        meaning="A large part of the dataset comes on no rank: it is divided by more ranks than there are, or twice.",
        evidence="The loaders of all ranks came to their end, and more samples are missing than drop_last leaves out.",
        alike=("data.dropped: there less than a batch a rank is missing.",),
        fix="Compare the sampler's num_replicas with the number of ranks, and shard in one place only.",
    ),
    KnownCause(
        code="data.uneven",
        meaning="The ranks have different numbers of batches: the one with fewer will leave the others waiting.",
        evidence="The loaders of all ranks came to their end, or say how long they are, and the numbers differ.",
        alike=("data.dropped: there all ranks leave out alike.",),
        fix="Pad or drop to the same number of batches, agree on the smallest one, or train under Join([model]).",
    ),
    KnownCause(
        code="data.split_differs",
        meaning="Samples that one rank evaluates are trained on by another: each rank split the dataset for itself.",
        evidence="The ranks' training samples together hold some that are evaluated, and none of a rank's own.",
        alike=("data.sampler_differs: there the shares of training overlap.",),
        fix="Give random_split a generator with the same seed on every rank, or split once and save the indices.",
    ),
    KnownCause(
        code="data.epoch_order",
        meaning="An epoch replays the order of an earlier one: the sampler was not told the epoch.",
        evidence="Every rank holds, in the same order, the samples of an earlier step or epoch, and the control does "
        "not.",
        alike=("data.other_samples: there the order is new, and not the control's.",),
        fix="Call sampler.set_epoch(epoch) before each epoch, on every rank.",
    ),
    KnownCause(
        code="data.padded",
        meaning="The sampler repeats samples to give every rank the same number.",
        evidence="No sample of the control's is missing, and what is there in addition was there before.",
        alike=("data.overlap: there ranks share samples from the start.",),
        fix="Nothing, if a few repeated samples an epoch are meant; else drop_last=True, or a sampler without padding.",
    ),
    KnownCause(
        code="data.dropped",
        meaning="Samples that the control trains on are left out: drop_last, or a length that was rounded down.",
        evidence="Some of the control's samples are missing, and no others are there in their place.",
        alike=("data.sampler_differs: there other ranks hold samples twice in their place.",),
        fix="Nothing, if a few dropped samples an epoch are meant; else drop_last=False in sampler and loader.",
    ),
    KnownCause(
        code="data.more_steps",
        meaning="The run trains on more batches than the control: its data is longer, or it is not sharded.",
        evidence="All common steps agree, and the candidate goes on after the control has ended.",
        alike=("data.padded: there the last step holds repeated samples.",),
        fix="Compare the length of the loader on both sides: it should be divided by the number of ranks.",
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
        code="eval.padded",
        meaning="Evaluation counts repeated samples: the sampler pads to give every rank the same number.",
        evidence="All of the control's samples were evaluated, some more often than there, and all ranks evaluated "
        "equally many.",
        alike=("eval.repeated: there the ranks evaluated different numbers of samples.",),
        fix="Evaluate range(rank, n, world_size) without padding, or drop the repeated results before the metric.",
    ),
    KnownCause(
        code="eval.repeated",
        meaning="Evaluation counts samples more often than the control does.",
        evidence="All of the control's samples were evaluated, and some of them on several ranks.",
        alike=("eval.padded: there every rank evaluated equally many samples.",),
        fix="Shard the evaluation set without overlap, or evaluate all of it on one rank.",
    ),
    KnownCause(
        code="eval.dropped",
        meaning="Evaluation leaves out samples that the control evaluates.",
        evidence="Some of the control's samples were evaluated by no rank, and no others were in their place.",
        alike=("eval.other_samples: there others were evaluated in their place.",),
        fix="Set drop_last=False in the evaluation's sampler and loader, and cover the rest of the division by ranks.",
    ),
    KnownCause(
        code="eval.other_samples",
        meaning="Evaluation runs over other samples than the control's: another split, overlap, or a limit a rank.",
        evidence="The samples over all ranks are another multiset than the control's.",
        alike=("eval.padded: there only repeated samples were added.",),
        fix="Split before the ranks part, with one seed; limits on batches count per rank.",
    ),
    KnownCause(
        code="metric.mean_of_means",
        meaning="A metric is the mean of the ranks' means although they evaluated different numbers of samples.",
        evidence="The metric is the plain mean of what the ranks put into the all-reduce; weighted by their numbers of "
        "samples the same values give the control's metric.",
        alike=("eval.padded: there the samples are counted wrongly already.",),
        fix="All-reduce the sum and the count, and divide once.",
    ),
    KnownCause(
        code="metric.scaled",
        meaning="A metric is off by the number of ranks: summed where it should be averaged, or divided twice.",
        evidence="Candidate over control is the world size or one over it.",
        alike=("metric.mean_of_means: there the weights are wrong, not the divisor.",),
        fix="Divide the all-reduced sum once: by the all-reduced count.",
    ),
    KnownCause(
        code="metric.one_share",
        meaning="A metric is that of one rank's share: it was never reduced over the ranks.",
        evidence="The ranks read different values, never talked to each other in this evaluation, and their mean, "
        "weighted by samples, is the control's metric.",
        alike=("metric.mean_of_means: there the ranks' values are averaged.",),
        fix="All-reduce the sum and the count before the division, or evaluate everything on one rank.",
    ),
    KnownCause(
        code="metric.differs",
        meaning="The same samples were evaluated, and the metric is not the control's.",
        evidence="The samples over all ranks are the control's, and the number is further off than rounding explains.",
        alike=(
            "metric.mean_of_means: there the relation to the ranks' values is known.",
            "buffer.ranks_differ: running statistics that differ change what evaluation mode computes.",
        ),
        fix="Compare what each rank puts into the metric; one that is no mean over samples (F1, AUC, perplexity) has "
        "to be computed from all predictions.",
    ),
)
"""In the order of computation."""
