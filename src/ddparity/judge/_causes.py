"""Causes: a stable code, what it means, and what to do. A cause is claimed only where its relation was measured."""

from ._verdict import Cause

PROVED, LIKELY, UNEXPLAINED = "proved", "likely", "unexplained"

_TEXT = {
    "init.differs": "The runs do not start from the same parameters: seed, order of construction or loading differ.",
    "init.ranks_differ": "The ranks do not start from the same parameters, and no wrapper broadcast them.",
    "data.overlap": "Several ranks were given the same samples: the data is not sharded by rank.",
    "data.other_samples": "This step's samples are not the control's: sampler, seed, epoch or preprocessing differ.",
    "data.unmatched": "No sample has a counterpart in the control: other order, preprocessing, or slices of samples.",
    "bn.local_stats": "A batch norm normalises with each rank's own samples; one device uses the whole batch's.",
    "forward.batch_coupled": "Its inputs agree and its output does not: the module mixes samples, draws on a value of "
    "its rank, or computes something else.",
    "forward.ranks_differ": "Ranks that hold the same samples computed different outputs.",
    "random.masks_differ": "Ranks that hold the same samples drew different random masks: their generators are not in "
    "the same state.",
    "init.tie_lost": "A parameter that two modules share in the control is two parameters here: the tie was lost.",
    "loss.weighting": "Forward agrees but the merged loss does not: ranks or micro-batches are averaged alike although "
    "they hold different numbers of tokens or samples, or the divisor is not the global one.",
    "grad.none_synced": "No gradient is reduced: each rank steps with its own. The wrapper's forward is bypassed, its "
    "hooks do not fire, or the reduction is missing.",
    "grad.unsynced": "This gradient is each rank's own: no reduction covers the parameter.",
    "grad.reduction_lost": "This gradient is each rank's own, divided by the number of ranks as for an average: its "
    "reduction was not waited for, or reduced a copy.",
    "grad.ranks_differ": "The ranks hold different results of the reduction of this gradient.",
    "grad.summed": "Gradients are summed over the ranks, not averaged.",
    "grad.double_averaged": "Gradients are averaged twice: once by hand and once by the wrapper.",
    "grad.scaled": "Every gradient is the control's times one factor: loss or gradients are scaled once too often or "
    "not at all.",
    "grad.missing": "The control has a gradient here and the candidate has none: the parameter is not reached, is "
    "frozen, or was replaced by a copy.",
    "grad.low_precision": "Local gradients agree, the reduced ones are off by about one rounding to 16 bits: the "
    "reduction runs in lower precision.",
    "grad.wrong_reduction": "Local gradients agree, the reduced ones do not: wrong group, buffer, divisor or time.",
    "grad.path": "Forward and loss agree and the gradient does not: part of the backward path is cut or doubled, as "
    "by a collective without gradient, a detach, or a custom autograd function.",
    "clip.scaled_gradients": "Gradients were clipped while they were still multiplied by the loss scale.",
    "clip.local_norm": "Each rank clips with the norm of its own part of the gradients.",
    "clip.norm": "The norm that gradients are clipped with is not the control's although the gradients are.",
    "clip.missing": "The control clips gradients here and the candidate does not, or the other way round.",
    "clip.coefficient": "Gradients agree before clipping or unscaling, and not after it.",
    "scaler.scale": "The loss scale is not the control's.",
    "opt.lr": "The learning rate is not the control's: the scheduler is stepped at other times or counts other steps.",
    "opt.hyper_parameter": "A hyper-parameter of the optimizer is not the control's.",
    "opt.not_held": "The optimizer does not update this parameter: it was built before the parameter was replaced, or "
    "holds other objects.",
    "opt.ranks_differ": "Gradients and hyper-parameters agree over the ranks, and the updated parameters do not: "
    "optimizer state differs between the ranks.",
    "opt.update": "Gradients and hyper-parameters agree with the control's, and the updated parameters do not.",
    "opt.state": "The optimizer's state is not the control's.",
    "buffer.ranks_differ": "A buffer is updated from each rank's own samples, and nothing merges it.",
    "buffer.differs": "A buffer is not the control's.",
    "nonfinite": "NaN or infinity where the control has none.",
}

_ADVICE = {
    "init": "Seed before the model is built, on every rank alike.",
    "data": "Print the sampler's num_replicas, rank, seed and epoch on every rank.",
    "bn": "Convert with torch.nn.SyncBatchNorm.convert_sync_batchnorm, or accept statistics a rank.",
    "forward": "Put ddparity.mark(name, tensor) inside this module to see which of its tensors differs first.",
    "loss": "Divide the summed loss by the global number of tokens, times the world size under DDP.",
    "grad": "Look at who reduces this gradient, over which group and with which divisor.",
    "clip": "Unscale before clipping (scaler.unscale_(optimizer)), and clip with the norm over all ranks.",
    "random": "Seed the generator of these ranks alike (tensor-parallel ranks draw the same masks).",
    "scaler": "Give the scaler the same init_scale in both runs.",
    "opt": "Print optimizer.param_groups and its state after the wrapper is built, on every rank.",
    "buffer": "Reduce the buffer over the ranks before it is used or saved.",
    "nonfinite": "Try float32 or a lower learning rate to see whether the value overflows.",
}


def cause(code: str, confidence: str = PROVED, detail: str = "") -> Cause:
    """Return the cause of a code; ``detail`` is put after its text."""
    text = _TEXT[code] if not detail else f"{_TEXT[code]} {detail}"
    return Cause(code=code, text=text, confidence=confidence)


def advice(code: str) -> str:
    """Return what to look at or to change before the next recording."""
    return _ADVICE[code.partition(".")[0]]
