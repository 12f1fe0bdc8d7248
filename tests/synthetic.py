"""Trials without torch or processes: a small model in numpy, trained on any number of ranks, with faults to order.

What is written is what the recorder writes: the same rows, events, numbers and flags in the same order (a test holds
the two against each other). Healthy runs differ from their control as real ones do: float32 sums in another order,
and rounding put on every tensor on top of it (``noise``).
"""

import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from ddparity.digest import digest_of
from ddparity.trace import (
    FLAG_GRAD,
    FLAG_TRAINING,
    Event,
    RankFacts,
    RankStatus,
    RankWriter,
    Site,
    TrialFacts,
    TrialStatus,
)

EPS = 2.0**-23
OPTIMIZERS = {"sgd": "SGD", "momentum": "SGD", "adam": "Adam"}
HASHED = set(Site) - {Site.ACTIVATION, Site.ACTIVATION_GRADIENT, Site.LOCAL_GRADIENT}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what, from which step on, where, on which ranks (None: all), and how much."""

    kind: str
    step: int = 0
    names: tuple[str, ...] | None = None
    layer: int = 0
    ranks: tuple[int, ...] | None = None
    value: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training: ``batch`` samples a step over all ranks, ``copies`` ranks each hold the same of them."""

    world_size: int = 1
    widths: tuple[int, ...] = (6, 16, 12, 4)
    steps: int = 3
    micro: int = 1
    batch: int = 24
    copies: int = 1
    order: str = "strided"  # blocks, shuffled, uneven
    reduction: str = "mean"  # as DDP does it; sum: by hand, with the loss divided by the whole batch
    optimizer: str = "sgd"
    lr: float = 0.05
    weight_decay: float = 0.0
    clip: float = 0.0
    seed: int = 0
    order_seed: int = 0
    noise: float = 0.0
    dtype: str = "float32"
    buffer: bool = False
    overflows: tuple[int, ...] = ()  # steps that a gradient scaler skips
    after: str = ""  # clip: weights are clipped after every step; average: averaged then, in place of the gradients;
    # share: each rank updates its share of the parameters, and hands it to the others
    faults: tuple[Fault, ...] = ()
    missing: tuple[int, ...] = ()
    killed: tuple[int, int] | None = None  # rank, step

    @property
    def layers(self) -> int:
        return len(self.widths) - 1

    @property
    def parameters(self) -> list[str]:
        """Names as in ``Sequential(Linear, Tanh, Linear, ...)``."""
        return [f"{2 * i}.{kind}" for i in range(self.layers) for kind in ("weight", "bias")]

    @property
    def backward_order(self) -> list[str]:
        return [f"{2 * i}.{kind}" for i in reversed(range(self.layers)) for kind in ("bias", "weight")]

    def owner(self, name: str) -> int:
        """Return the rank that updates a parameter where each updates its share."""
        return self.parameters.index(name) % self.world_size

    def fault(self, kind: str, step: int, rank: int | None = None, name: str | None = None) -> Fault | None:
        for fault in self.faults:
            here = rank is None or fault.ranks is None or rank in fault.ranks
            if (
                fault.kind == kind
                and step >= fault.step
                and here
                and (name is None or name in (fault.names or (name,)))
            ):
                return fault
        return None


def as_control(training: Training) -> Training:
    """Return the single-device training that a candidate is held against."""
    alone = {"world_size": 1, "micro": 1, "copies": 1, "order": "blocks", "reduction": "mean", "noise": 0.0}
    alone["after"] = training.after if training.after == "clip" else ""
    return replace(training, faults=(), missing=(), killed=None, dtype="float32", **alone)


def write_trial(training: Training, folder: Path, *, name: str = "") -> Path:
    """Train, and write the trial; returns its folder."""
    name = name or folder.name
    folder.mkdir(parents=True)
    facts = TrialFacts(id=name, name=name, command=["python", "train.py"], cwd="/", control=training.world_size == 1)
    facts.status = TrialStatus.FAILED if training.killed else TrialStatus.COMPLETED
    facts.exit_code = 1 if training.killed else 0
    (folder / "trial.json").write_bytes(msgspec.json.encode(facts))
    ranks = [Rank(training, rank, folder) for rank in range(training.world_size)]
    for step in range(training.steps):
        for rank in ranks:
            rank.forward_backward(step)
        _reduce(training, ranks, step)
        for rank in ranks:
            rank.update(step)
        _change_after(training, ranks, step)
    for rank in ranks:
        if training.world_size > 1:
            rank.settle(ends=True)
        rank.close()
    return folder


@dataclass
class Rank:
    """One process: its parameters, its share of the data, its pen."""

    training: Training
    rank: int
    folder: Path
    parameters: dict[str, np.ndarray] = field(init=False)
    state: dict[str, dict[str, np.ndarray]] = field(init=False)
    local: dict[str, np.ndarray] = field(init=False)
    synced: dict[str, np.ndarray] = field(init=False)
    writer: RankWriter | None = field(init=False, default=None)
    dead: bool = field(init=False, default=False)

    def __post_init__(self):
        t = self.training
        rng = np.random.default_rng(t.seed)
        self.parameters, self.state, self.count = {}, {}, 0
        for layer, (fan_in, fan_out) in enumerate(zip(t.widths, t.widths[1:], strict=False)):
            self.parameters[f"{2 * layer}.weight"] = _f32(rng.normal(size=(fan_out, fan_in)) / np.sqrt(fan_in))
            self.parameters[f"{2 * layer}.bias"] = _f32(0.1 * rng.normal(size=fan_out))
        for name, value in self.parameters.items():
            if t.fault("init", 0, self.rank, name):
                self.parameters[name] = _f32(value + 0.01 * rng.normal(size=value.shape))
        self.buffer = np.full(t.widths[0], 1.0 if t.fault("buffer_start", 0, self.rank) else 0.0, dtype=np.float32)
        self.unsettled, self.changed = None, []
        if self.rank not in t.missing:
            backend = "gloo" if t.world_size > 1 else None
            facts = RankFacts(
                rank=self.rank, local_rank=self.rank, world_size=t.world_size, pid=1, hostname="synthetic"
            )
            facts.backend, facts.seeds = backend, {"torch": t.seed}
            self.writer = RankWriter(self.folder / f"rank-{self.rank:05d}", facts)
            self._describe()

    def _describe(self):
        t = self.training
        kinds = {str(i): "Tanh" if i % 2 else "Linear" for i in range(2 * t.layers - 1)}
        modules, held = {"Sequential": "Sequential", **kinds}, dict.fromkeys(t.parameters, True)
        self.event(Event.MODEL, 0, name="Sequential", parameters=held, modules=modules, ties={})
        if t.world_size > 1 and t.reduction == "mean":
            settings = {"find_unused_parameters": False, "broadcast_buffers": True, "group_size": t.world_size}
            self.event(Event.WRAP, 0, name="DistributedDataParallel", root="Sequential", **settings)
        for name, value in self.parameters.items():
            self.digest(value, Site.PARAMETER, name, 0)
        if t.buffer:
            self.digest(self.buffer, Site.BUFFER_AT_START, "0.running", 0)

    # -- what is written --------------------------------------------------------------------------------------------

    def event(self, kind, step, **data):
        if self.writer is not None and not self.dead:
            self.writer.event(kind, step=step, **data)

    def digest(self, array, site, name, step, *, keys=None, **where):
        if self.writer is None or self.dead:
            return
        made = digest_of(array, row_keys=keys)
        hashed = site in HASHED and self.training.world_size > 1
        made = replace(made, hash=made.hash if hashed else None, dtype=self.training.dtype)
        self.writer.digest(made, site=site, name=name, step=step, **where)

    def close(self):
        if self.writer is None:
            return
        if self.dead:
            for file in self.writer._files.values():
                file.close()
            return
        self.writer.facts.status = RankStatus.FINISHED
        self.writer.close()

    def noisy(self, array, *key):
        """Put rounding on an array; copies of it on other ranks get the same if ``key`` names no rank."""
        noise = self.training.noise
        if not noise or not array.size:
            return _f32(array)
        rng = np.random.default_rng(zlib.crc32(repr((self.training.order_seed, *key)).encode()))
        rms = np.sqrt(np.mean(np.square(array, dtype=np.float64)))
        return _f32(array + noise * EPS * rms * rng.uniform(-1.0, 1.0, size=array.shape))

    # -- forward and backward ---------------------------------------------------------------------------------------

    def forward_backward(self, step):
        t = self.training
        self.event(Event.RNG, step, torch="00")
        self.settle()
        self.local = {name: np.zeros_like(value) for name, value in self.parameters.items()}
        for number, chosen in enumerate(_micro_batches(t, step, self.rank)):
            inputs, targets, ids = _samples(t, step, self.rank)
            self._micro_batch(step, number, inputs[chosen], targets[chosen], ids[chosen], len(chosen))
        if t.killed == (self.rank, step):
            self._die()
        reached = [name for name in t.backward_order if not t.fault("missing", step, self.rank, name)]
        self.event(Event.GRADIENT_ORDER, step, order=reached)

    def _die(self):
        if self.writer is not None:
            self.writer.flush()
        self.dead = True

    def _micro_batch(self, step, number, inputs, targets, ids, size):
        t = self.training
        if self.writer is not None and not self.dead:
            self.writer.samples(step=step, batch=number, root="Sequential", training=True, ids=ids)
        divisor = t.batch * t.copies / t.world_size if t.reduction == "mean" else t.batch
        if t.fault("weighting", step):
            divisor = size * t.micro
        outputs = self._forward(step, number, inputs, ids)
        error = outputs[-1] - targets
        loss = float(0.5 * np.sum(np.square(error), dtype=np.float64) / divisor)
        self.event(Event.BACKWARD, step, name="backward", value=loss, batch=number, backward=number + 1, dtype=t.dtype)
        self._backward(step, number, [inputs, *outputs], _f32(error / divisor), ids)

    def _where(self, module, number):
        kind = "Tanh" if module % 2 else "Linear"
        return {"module": kind, "batch": number, "rows": 1, "flags": FLAG_GRAD | FLAG_TRAINING}

    def _forward(self, step, number, x, ids):
        outputs = []
        for module in range(2 * self.training.layers - 1):
            if module % 2:
                x = np.tanh(x)
            else:
                x = x @ self.parameters[f"{module}.weight"].T + self.parameters[f"{module}.bias"]
            x = self._faulty_output(self.noisy(x, "a", module, step, number, self._group), step, module)
            self.digest(x, Site.ACTIVATION, str(module), step, keys=ids, **self._where(module, number))
            outputs.append(x)
        return outputs

    @property
    def _group(self):
        return self.rank // self.training.copies

    def _faulty_output(self, x, step, module):
        if module % 2 == 0 and (fault := self.training.fault("nan", step, self.rank)) and fault.layer == module // 2:
            x = x.copy()
            x[0, 0] = np.nan
        if module % 2 == 0 and (fault := self.training.fault("output", step, self.rank)) and fault.layer == module // 2:
            x = _f32(x * fault.value)
        return x

    def _backward(self, step, number, outputs, gradient, ids):
        t = self.training
        for module in reversed(range(2 * t.layers - 1)):
            where = {**self._where(module, number), "backward": number + 1}
            gradient = self.noisy(gradient, "ag", module, step, number, self._group)
            self.digest(gradient, Site.ACTIVATION_GRADIENT, str(module), step, keys=ids, **where)
            if module % 2:
                gradient = gradient * (1.0 - np.square(outputs[module + 1]))
                continue
            self._local(step, number, f"{module}.bias", gradient.sum(0))
            self._local(step, number, f"{module}.weight", gradient.T @ outputs[module])
            gradient = gradient @ self.parameters[f"{module}.weight"]
            if (fault := t.fault("path", step)) and fault.layer == module // 2:
                gradient = _f32(gradient * 0.9)

    def _local(self, step, number, name, value):
        if self.training.fault("missing", step, self.rank, name):
            return
        value = self.noisy(value, "l", name, step, number, self.rank)
        self.local[name] = self.local[name] + value
        if self.training.world_size > 1:
            self.digest(value, Site.LOCAL_GRADIENT, name, step, backward=number + 1)

    # -- the update -------------------------------------------------------------------------------------------------

    def update(self, step):
        t = self.training
        held = [name for name in t.parameters if not t.fault("not_held", step, name=name)]
        held = [name for name in held if t.after != "share" or t.owner(name) == self.rank]
        given = {name: self.synced[name] for name in held if name in self.synced}
        if step in t.overflows and not t.fault("not_skipped", step, self.rank):
            for name, value in given.items():
                self.digest(np.full_like(value, np.inf), Site.SYNCED_GRADIENT, name, step)
            self.event(Event.OPTIMIZER, step, name="skipped", groups=[], params=[])
            self._end(step)
            return
        for name, value in given.items():
            self.digest(self.local[name] if t.fault("clip_first", step) else value, Site.SYNCED_GRADIENT, name, step)
        if t.fault("clip_first", step):
            self.event(Event.CLIP, step, name="grad_norm", value=_norm(self.local.values()), max_norm=t.clip)
            for name, value in given.items():
                self.digest(value, Site.STEP_GRADIENT, name, step)
        elif t.clip:
            given = self._clip(step, given)
        lr = t.lr * (fault.value if (fault := t.fault("lr", step, self.rank)) else 1.0)
        decay = fault.value if (fault := t.fault("weight_decay", step, self.rank)) else t.weight_decay
        group = {"lr": lr, "momentum": 0.9 if t.optimizer == "momentum" else 0.0, "weight_decay": decay}
        lost = t.fault("count", step, self.rank)
        if lost and lost.step == step:
            self.count = 0
        counted = {} if t.optimizer != "adam" or not self.state else {self.count: held[0]}
        self.event(Event.OPTIMIZER, step, name=OPTIMIZERS[t.optimizer], groups=[group], params=[held], counted=counted)
        if (fault := t.fault("state", step, self.rank)) and fault.step == step:
            self.state = {n: {k: _f32(v * 0.5) for k, v in s.items()} for n, s in self.state.items()}
        self.count += 1
        for name in held:
            if name in given:
                change = self._change(name, given[name] + decay * self.parameters[name])
                self.parameters[name] = self.noisy(self.parameters[name] - lr * change, "p", name, step)
            if step in (0, t.steps - 1):
                for part, value in self.state.get(name, {}).items():
                    self.digest(value, Site.OPTIMIZER_STATE, name, step, part=part)
            self.digest(self.parameters[name], Site.PARAMETER_AFTER, name, step)
        self._end(step)

    def _end(self, step):
        t = self.training
        self.event(Event.STEP, step)
        if t.buffer:
            own = self.rank if t.fault("buffer", step) else 0
            self.buffer = _f32(
                0.9 * self.buffer + 0.1 * np.random.default_rng((step, own)).normal(size=self.buffer.shape)
            )
            self.digest(self.buffer, Site.BUFFER, "0.running", step)
        self.unsettled = step
        if self.writer is not None and not self.dead:
            self.writer.flush()

    def change(self, name, value):
        """Put another value in a parameter's place after the step."""
        if not np.array_equal(self.parameters[name], value):
            self.parameters[name], self.changed = value, [*self.changed, name]

    def settle(self, *, ends=False):
        step, changed = self.unsettled, self.changed
        self.unsettled, self.changed = None, []
        if step is not None:
            for name in changed:
                self.digest(self.parameters[name], Site.PARAMETER_LEFT, name, step)
            if not ends:
                self.event(Event.SETTLED, step, changed=changed)

    def _clip(self, step, given):
        t = self.training
        norm = _norm(given.values())
        if fault := t.fault("clip", step, self.rank):
            norm *= fault.value
        self.event(Event.CLIP, step, name="grad_norm", value=norm, max_norm=t.clip)
        factor = min(1.0, t.clip / (norm + 1e-6))
        given = {name: self.noisy(value * factor, "c", name, step) for name, value in given.items()}
        for name, value in given.items():
            self.digest(value, Site.STEP_GRADIENT, name, step)
        return given

    def _change(self, name, gradient):
        if self.training.optimizer == "sgd":
            return gradient
        state = self.state.setdefault(name, {})
        if self.training.optimizer == "momentum":
            state["momentum_buffer"] = _f32(0.9 * state.get("momentum_buffer", 0.0) + gradient)
            return state["momentum_buffer"]
        first = _f32(0.9 * state.get("exp_avg", 0.0) + 0.1 * gradient)
        second = _f32(0.999 * state.get("exp_avg_sq", 0.0) + 0.001 * np.square(gradient))
        state |= {"step": _f32(self.count), "exp_avg": first, "exp_avg_sq": second}
        root = np.sqrt(second / (1.0 - 0.999**self.count)) + 1e-8
        return first / (1.0 - 0.9**self.count) / root


def _norm(values):
    return float(np.sqrt(sum(np.sum(np.square(v, dtype=np.float64)) for v in values)))


def _f32(array):
    return np.asarray(array, dtype=np.float32)


def _reduce(training, ranks, step):
    """Bring the gradients of all ranks together, as the training's faults let it happen."""
    num = len(ranks)
    for rank in ranks:
        rank.synced = {}
    clips = [1.0 for _ in ranks]
    if training.fault("clip_first", step):
        clips = [min(1.0, training.clip / (_norm(rank.local.values()) + 1e-6)) for rank in ranks]
    for name in training.parameters:
        local = [rank.local[name] * _f32(clip) for rank, clip in zip(ranks, clips, strict=True)]
        total = sum(local[1:], local[0])
        merged = _f32(total / num if training.reduction == "mean" else total)
        if training.fault("summed", step, name=name):
            merged = _f32(merged * num)
        if training.fault("divided", step, name=name):
            merged = _f32(merged / num)
        merged = ranks[0].noisy(merged, "s", name, step) if num > 1 else merged
        if training.fault("low_precision", step, name=name):
            merged = _bfloat16(merged)
        for number, rank in enumerate(ranks):
            value = merged
            if training.after == "average" or training.fault("unsynced", step, name=name):
                value = local[number]
            elif training.fault("pairs", step, name=name):
                first = number - number % 2
                value = _f32(sum(local[first : first + 2]) / 2.0)
            if not training.fault("missing", step, number, name):
                rank.synced[name] = value


def _change_after(training, ranks, step):
    """Change parameters between two steps, as the training does it or a fault has it."""
    for name in training.parameters:
        mean = _f32(sum(rank.parameters[name] for rank in ranks) / len(ranks))
        for number, rank in enumerate(ranks):
            value = (
                mean if training.after == "average" and not training.fault("not_averaged", step, name=name) else None
            )
            value = ranks[training.owner(name)].parameters[name] if training.after == "share" else value
            value = np.clip(rank.parameters[name], -0.3, 0.3) if training.after == "clip" else value
            if fault := training.fault("left", step, number, name):
                value = _f32((rank.parameters[name] if value is None else value) * fault.value)
            if value is not None:
                rank.change(name, value)


def _bfloat16(array):
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _samples(training, step, rank):
    """Return inputs, targets and identities of a step's whole batch, as a rank sees it."""
    other = training.fault("samples", step, rank)
    seed = (training.seed, step, 1 if other and other.step == step else 0)
    rng = np.random.default_rng(seed)
    inputs = _f32(rng.normal(size=(training.batch, training.widths[0])))
    targets = _f32(rng.normal(size=(training.batch, training.widths[-1])))
    return inputs, targets, rng.integers(1, 2**63, size=training.batch, dtype=np.uint64)


def _micro_batches(training, step, rank):
    """Return the indices of a rank's samples, one array a micro-batch."""
    order = np.arange(training.batch)
    rng = np.random.default_rng((training.order_seed, step))
    parts = training.world_size // training.copies
    if training.order in ("shuffled", "uneven"):
        rng.shuffle(order)
    total = parts * training.micro
    if training.order == "uneven":
        cuts = np.sort(rng.choice(np.arange(1, training.batch), size=total - 1, replace=False))
        pieces = np.split(order, cuts)
    elif training.order == "strided":
        pieces = [order[start::total] for start in range(total)]
    else:
        pieces = np.array_split(order, total)
    part = 0 if training.fault("overlap", step) else rank // training.copies
    return pieces[part * training.micro : (part + 1) * training.micro]
