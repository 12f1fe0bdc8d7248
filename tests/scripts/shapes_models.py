"""Snippets: models of every shape. Each is a small training that does one thing in its own way."""

import contextlib
import dataclasses
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def _fit(model, *inputs, steps=2, call=None, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    call = call or (lambda: model(*inputs).square().mean())
    for _ in range(steps):
        optimizer.zero_grad()
        call().backward()
        optimizer.step()


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


def plain_names():
    _fit(_Net(), torch.randn(4, 6))


def compiled_names():
    model = _Net()
    _fit(torch.compile(model, backend="eager"), torch.randn(4, 6))


def compiled_in_place_names():
    model = _Net()
    model.compile(backend="eager")
    _fit(model, torch.randn(4, 6))


def compiled_step():
    model, x = _Net(), torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of = torch.compile(lambda x: model(x).square().mean(), backend="eager")
    _fit(model, call=lambda: loss_of(x), optimizer=optimizer)


def checkpoint_wrapper_names():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = _Net()
    model.body = checkpoint_wrapper(model.body)
    _fit(model, torch.randn(4, 6))


class _Checkpointed(_Net):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(6, 6)

    def forward(self, x):
        return self.head(checkpoint(self.body, self.first(x), use_reentrant=self.reentrant))


def recomputed_once():
    _fit(_Checkpointed(False), torch.randn(4, 6))


def recomputed_once_reentrant():
    _fit(_Checkpointed(True), torch.randn(4, 6))


def whole_model_checkpointed():
    model, x = _Net(), torch.randn(4, 6, requires_grad=True)
    _fit(model, call=lambda: checkpoint(model, x, use_reentrant=True).square().mean())


class _Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


def shared_module_twice():
    _fit(_Twice(), torch.randn(4, 6))


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def tied_parameters():
    _fit(_Tied(), torch.randint(0, 11, (4, 5)))


@dataclasses.dataclass
class _Output:
    logits: torch.Tensor
    hidden: tuple
    nothing: None = None


class _ModelOutput(OrderedDict):
    def __getattr__(self, name):
        return self[name]


class _Returns(_Net):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, input_ids=None, labels=None):
        hidden = self.body(input_ids)
        logits = self.head(hidden)
        loss = F.cross_entropy(logits, labels) if labels is not None else logits.mean()
        return self.make(loss, logits, hidden)


def returns_dict():
    model, x = _Returns(lambda loss, logits, hidden: {"loss": loss, "logits": logits}), torch.randn(4, 6)
    _fit(model, call=lambda: model(x)["loss"])


def returns_dataclass():
    model, x = _Returns(lambda loss, logits, hidden: _Output(logits * 2, (hidden, loss))), torch.randn(4, 6)
    _fit(model, call=lambda: model(x).logits.mean())


def returns_model_output_by_keyword():
    model = _Returns(lambda loss, logits, hidden: _ModelOutput(loss=loss, logits=logits))
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    _fit(model, call=lambda: model(input_ids=x, labels=y).loss)


class _Positions(nn.Module):
    """As in nanoGPT; as many positions as samples."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe, self.head = nn.Embedding(11, 6), nn.Embedding(8, 6), nn.Linear(6, 11)

    def forward(self, x):
        return self.head(self.wte(x) + self.wpe(torch.arange(x.shape[1])))


def positions():
    _fit(_Positions(), torch.randint(0, 11, (5, 5)))


def channels_last():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    _fit(model, torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last))


def autocast():
    model, x = _Net(), torch.randn(4, 6)

    def call():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float().square().mean()

    _fit(model, call=call)


class _Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.LazyLinear(5), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.body(x))


def lazy():
    model, x = _Lazy(), torch.randn(4, 6)
    model(x)
    _fit(model, x)


class _Catches(_Net):
    def __init__(self):
        super().__init__()
        self.bad = nn.Linear(1, 1)

    def forward(self, x):
        with contextlib.suppress(RuntimeError):
            self.bad(x)
        return super().forward(x)


def caught_exception():
    model, x = _Catches(), torch.randn(4, 6)
    for _ in range(2):
        with contextlib.suppress(TypeError):
            model("nonsense")
    _fit(model, x)


def models_in_a_loop():
    for _ in range(3):
        _fit(_Net(), torch.randn(4, 6), steps=1)


def losses_made_anew():
    model, x, y = _Net(), torch.randn(4, 6), torch.randint(0, 3, (4,))
    _fit(model, call=lambda: nn.CrossEntropyLoss()(model(x), y), steps=3)


class _Transform(nn.Module):
    def forward(self, x):
        return x * 2


def transforms_in_the_loader():
    class Data(torch.utils.data.Dataset):
        transform = _Transform()

        def __len__(self):
            return 8

        def __getitem__(self, i):
            return self.transform(torch.full((6,), float(i)))

    model = _Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(Data(), batch_size=4):
        model(x).sum().backward()
        optimizer.step()


class _LenZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def __len__(self):
        return 0

    def forward(self, x):
        return self.layer(x)


def falsy_module():
    _fit(_LenZero(), torch.randn(4, 6))


def submodule_called_alone():
    model, x = _Net(), torch.randn(4, 6)
    _fit(model, call=lambda: model.head(model.body(x)).sum())


def returns_its_parameter():
    class Prompt(nn.Module):
        def __init__(self):
            super().__init__()
            self.prompt = nn.Parameter(torch.randn(6))

        def forward(self):
            return self.prompt

    class Model(_Net):
        def __init__(self):
            super().__init__()
            self.learned = Prompt()

        def forward(self, x):
            return super().forward(x + self.learned())

    model = Model()
    _fit(model, torch.randn(4, 6), steps=3)
    assert len(model.learned.prompt._backward_hooks or {}) <= 1


def carried_state():
    """Truncated backpropagation: a state that the step before has made is no identity of samples."""
    cell, head = nn.GRUCell(6, 6), nn.Linear(6, 1)
    model = nn.ModuleDict({"cell": cell, "head": head})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, state = torch.arange(3 * 4 * 6.0).reshape(3, 4, 6), torch.zeros(4, 6)
    for x in data:
        state = cell(x, state.detach())
        head(state).sum().backward()
        optimizer.step()


class _SizesItself(nn.Module):
    """Calls its first layers while it is being built, to find out the size of the next one."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.head = nn.Linear(self.conv(torch.zeros(1, 1, 5, 5)).numel(), 3)

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


def called_while_being_built():
    _fit(_SizesItself(), torch.randn(4, 1, 5, 5))


def inner_wrapper_names():
    from torch.nn.parallel import DataParallel

    model = nn.ModuleDict({"a": DataParallel(_Net()), "b": torch.compile(_Net(), backend="eager")})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _fit(model, call=lambda: (model["a"](torch.ones(4, 6)) + model["b"](torch.ones(4, 6))).sum(), optimizer=optimizer)


class _Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.views, self.pixels = nn.Linear(75, 6), nn.Linear(3, 2)

    def forward(self, x):
        views = torch.cat([x, x.flip(2), x.flip(3)])
        return self.views(views.flatten(1)).mean() + self.pixels(x.movedim(1, 3).flatten(0, 2)).mean()


def three_views_of_images():
    _fit(_Views(), torch.randn(4, 3, 5, 5), steps=1)


class _Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, x):
        x = self.body(x)
        return self.head(self.middle(x * (torch.rand(x.shape) > 0.5)))


def masked_by_hand():
    _fit(_Masked(), torch.randn(4, 6), steps=1)
