"""The causes of the memory layer."""

from ._cause import KnownCause

MEMORY = (
    KnownCause(
        code="memory.out_of_memory",
        meaning="A rank ran out of memory; what the other ranks report of their collectives follows from it.",
        evidence="The error that ended the rank is one of memory (OutOfMemoryError, MemoryError, or its text), and it "
        "stands before the errors of the other ranks.",
        alike=("memory.growth: there each step leaves more behind; here a step needs more at once.",),
        fix="Look at the phase that is named: shorten or bucket the longest samples, make the batch smaller, or add "
        "activation checkpointing for activations; shard or change the optimizer for its state, and measure at least "
        "two whole steps before the launch, since the state appears at the end of the first.",
    ),
    KnownCause(
        code="memory.killed",
        meaning="A rank was killed by SIGKILL while it held most of the memory that there is.",
        evidence="Exit by signal 9, and more than 60 % of the limit held at its last step.",
        alike=("rank.killed: there memory was far from its limit.",),
        fix="Look into the kernel's log (dmesg) for its out-of-memory killer, and lower what a step holds.",
    ),
    KnownCause(
        code="memory.graph_kept",
        meaning="A variable adds up tensors together with the graphs that computed them, so the activations of every "
        "step stay alive.",
        evidence="What the ends of steps hold rises evenly, and the number of graph nodes that hang on one variable "
        "rises with it.",
        alike=("memory.outputs_kept: there the variable holds more tensors every step.",),
        fix="Add up numbers instead of tensors: .item(), or .detach() where the device should not be waited for.",
    ),
    KnownCause(
        code="memory.outputs_kept",
        meaning="A container takes in tensors every step together with the graphs that computed them.",
        evidence="What the ends of steps hold rises evenly, and a container holds more tensors and nodes each time.",
        alike=("memory.tensors_kept: there the tensors hold no graph.", "memory.graph_kept: there it is one tensor."),
        fix="Put .detach() (and .cpu()) of what is wanted into the container, or reduce it to numbers, and empty it.",
    ),
    KnownCause(
        code="memory.tensors_kept",
        meaning="A list, cache or hook takes in tensors or arrays every step and lets none go.",
        evidence="What the ends of steps hold rises evenly, and a variable or attribute holds more tensors each time.",
        alike=("memory.outputs_kept: there the tensors hold graphs as well.",),
        fix="Bound the container (deque with maxlen, a cache with a limit), empty it, or remove the hook.",
    ),
    KnownCause(
        code="memory.growth",
        meaning="What is held when a step has ended rises step after step.",
        evidence="Four fifths of the last steps' ends hold more than the one before, by about the same amount.",
        alike=(
            "memory.graph_kept: there the variable that holds it was found.",
            "memory.tensors_kept: there the container that holds it was found.",
        ),
        fix="Record more steps, so that the variable that holds it can be found; look for what is kept outside of the "
        "functions on the stack.",
    ),
    KnownCause(
        code="memory.evaluation_keeps_graphs",
        meaning="An evaluation runs with gradients and keeps what it computed, so that every batch stays in memory.",
        evidence="Before each call more is held, by more than the outputs, and the outputs have graphs.",
        alike=("memory.outputs_kept: there it is training whose outputs are kept.",),
        fix="Evaluate inside torch.no_grad() or torch.inference_mode(), and keep numbers or detached outputs.",
    ),
    KnownCause(
        code="memory.rank_holds_more",
        meaning="One rank holds much more than the others although it trains the same parameters.",
        evidence="At the ends of steps it holds more than the others by a quarter, or by half its parameters, in the "
        "median over all steps.",
        alike=("memory.more_than_control: there every rank may hold too much.",),
        fix="Look for what only that rank does: an averaged copy, full state dicts, checkpoints loaded by all ranks "
        "onto one device, logging that keeps tensors.",
    ),
    KnownCause(
        code="memory.graph_retained",
        meaning="Backward frees nothing of what forward kept for it, so that two steps' activations are held at once.",
        evidence="In most steps less than a tenth of what forward added is gone after backward, where the control's "
        "backward frees more than six tenths.",
        alike=("memory.graph_kept: there each step leaves more behind.",),
        fix="Leave retain_graph=True out, or give it to all but the last backward of a graph.",
    ),
    KnownCause(
        code="memory.more_than_control",
        meaning="A rank's step needs more memory than the single device did for all samples of that step.",
        evidence="Above what it held before the first step, a rank holds more than one and a half times the control at "
        "the same point, beyond what wrappers add (the parameters once more) and 2 MiB, with no more samples; or more "
        "than twice what it usually holds there, where it has more samples.",
        alike=("memory.out_of_memory: there it did not fit.",),
        fix="Look at the point that is named: in forward for longer samples than the control's, checkpointing "
        "that is off, or a hook that keeps tensors; after backward for retain_graph, or outputs that are kept.",
    ),
    KnownCause(
        code="memory.evaluation_beyond_control",
        meaning="An evaluation holds much more at once than the single device's evaluation at the same step.",
        evidence="After one of its calls more is held, above what was held before the first, than one and a half times "
        "what the control's evaluation added, the parameters once more and 2 MiB.",
        alike=(
            "memory.evaluation_keeps_graphs: there each call leaves more behind, with its graph.",
            "memory.more_than_control: there it is a training step.",
        ),
        fix="Look for larger or longer batches in the evaluation of these ranks, for the whole set evaluated on each "
        "rank, and for outputs that are gathered or kept on the device: reduce them to numbers, or move them away.",
    ),
)
