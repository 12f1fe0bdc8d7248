"""The causes of a resumed run that is not the uninterrupted one: what the checkpoint did not bring back."""

from ._cause import KnownCause

_COMMON = "The resumed run starts from the parameters of a step of the uninterrupted run, rank by rank, and"

RESUME = (
    KnownCause(
        code="resume.from_scratch",
        meaning="The second run did not resume: it starts from the very first parameters.",
        evidence="Its parameters before the first step are those of the uninterrupted run before its first step.",
        alike=("resume.other_parameters: there they are of no step at all.",),
        fix="Check that the script finds its checkpoint by itself, or give recover the --resume-args that it needs.",
    ),
    KnownCause(
        code="resume.parameters",
        meaning="Some parameters were not brought back by the checkpoint.",
        evidence="Most parameters are those of the step that was saved, and these are not.",
        alike=("resume.other_parameters: there none of them is.",),
        fix="Compare the keys of the saved state dict with the model's, and load with strict=True.",
    ),
    KnownCause(
        code="resume.other_parameters",
        meaning="The resumed run starts from parameters that the uninterrupted run never had up to that step.",
        evidence="No step's parameters are those that the resumed run starts from.",
        alike=("resume.from_scratch: there they are the very first ones.",),
        fix="Check which file is loaded, its dtype, and that what is saved is the trained model and not an average.",
    ),
    KnownCause(
        code="resume.samples",
        meaning="Training does not go on with the sample that is next: the epoch starts anew, or its order is another.",
        evidence=f"{_COMMON} the identities of its samples are not those of the same step.",
        alike=("resume.rng: there the samples agree and what is drawn does not.",),
        fix="Save epoch and position of sampler or loader (StatefulDataLoader), call set_epoch, and skip there.",
    ),
    KnownCause(
        code="resume.rng",
        meaning="Random generators were not brought back: dropout and augmentation draw other numbers than they would.",
        evidence=f"{_COMMON} samples agree while the state of a generator that the model draws from does not.",
        alike=("resume.forward: there no generator differs.",),
        fix="Save torch, numpy, python and device generator states on every rank, and restore each rank its own.",
    ),
    KnownCause(
        code="resume.buffers",
        meaning="Buffers, such as running statistics, were not brought back.",
        evidence=f"{_COMMON} a buffer of the step differs.",
        alike=("resume.parameters: there parameters differ.",),
        fix="Save model.state_dict(), which holds the buffers, on a rank whose buffers count.",
    ),
    KnownCause(
        code="resume.forward",
        meaning="The same parameters and samples give other activations after resuming: something else was lost.",
        evidence=f"{_COMMON} an activation is the first thing that differs.",
        alike=("resume.rng: there a generator differs as well.",),
        fix="Look for state outside the state dict: augmentation, caches, counters, mode (train or eval).",
    ),
    KnownCause(
        code="resume.gradients",
        meaning="The same activations give other gradients after resuming.",
        evidence=f"{_COMMON} a gradient is the first thing that differs.",
        alike=("resume.scaler: there the loss scale differs as well.",),
        fix="Look at what the loss is scaled and weighted by, and at accumulation that was cut by the checkpoint.",
    ),
    KnownCause(
        code="resume.scaler",
        meaning="The gradient scaler was not brought back.",
        evidence=f"{_COMMON} its loss scale is not that of the same step.",
        alike=("resume.gradients: there the loss scale agrees.",),
        fix="Save scaler.state_dict() and load it before the first step.",
    ),
    KnownCause(
        code="resume.schedule",
        meaning="Learning rate or another setting of the optimizer is not that of the same step: its schedule, or the "
        "state dict of the optimizer, which holds it too, was not brought back.",
        evidence=f"{_COMMON} a setting of the optimizer's parameter groups differs.",
        alike=("resume.optimizer_state: there the settings agree.",),
        fix="Load the optimizer's state dict on every rank, then the scheduler's, and step it as before.",
    ),
    KnownCause(
        code="resume.optimizer_state",
        meaning="The optimizer's state, such as Adam's moments, was not brought back, or not on every rank.",
        evidence=f"{_COMMON} gradients and settings agree while the update does not.",
        alike=("resume.schedule: there a setting of the optimizer differs.",),
        fix="Load optimizer.state_dict() on every rank, after the model was wrapped and before the first step.",
    ),
)
"""In the order of computation."""
