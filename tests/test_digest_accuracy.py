"""How well two digests estimate the difference of two tensors, whatever shape the difference has.

The promise: within 0.8 to 1.25 of the true relative error in 95 % of cases and more. The cases are not chosen: every
structure that a fault can have (one row, one column, a bias added everywhere, a block, a few elements, a period...)
times every kind of shape that parameters and activations have.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

from ddparity.digest import RowKeys, digest_tensor, relative_error

LAST_DIMS = [1, 3, 10, 64, 100, 128, 256, 384]
FIRST_DIMS = [1, 10, 64, 200, 301, 512, 1000]
SHAPES = [(rows, last) for last in LAST_DIMS for rows in FIRST_DIMS]
PERIODS = [2, 3, 4, 5, 7, 8, 16, 31, 32, 48, 64, 96, 100, 127, 128, 192, 255, 256]

Structure = Callable[[int, int, torch.Generator], torch.Tensor]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def randn(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def pick(size: int, generator: torch.Generator) -> int:
    return int(torch.randint(size, (1,), generator=generator))


def only(rows: int, last: int, part: tuple[slice | int, slice | int], value: torch.Tensor | float) -> torch.Tensor:
    tensor = torch.zeros(rows, last, dtype=torch.float64)
    tensor[part] = value
    return tensor


def few(rows: int, last: int, num: int, g: torch.Generator) -> torch.Tensor:
    tensor = torch.zeros(rows * last, dtype=torch.float64)
    tensor[torch.randperm(rows * last, generator=g)[:num]] = 1.0
    return tensor.view(rows, last)


def block(rows: int, last: int, g: torch.Generator) -> torch.Tensor:
    down, right = pick(rows, g), pick(last, g)
    return only(rows, last, (slice(down, down + rows // 3 + 1), slice(right, right + last // 3 + 1)), 1.0)


def period(rows: int, last: int, length: int, g: torch.Generator) -> torch.Tensor:
    wave = randn(length, generator=g)
    return wave.repeat(rows * last // length + 1)[: rows * last].view(rows, last)


ALL = slice(None)
STRUCTURES: dict[str, Structure] = {
    "dense": lambda r, c, g: randn(r, c, generator=g),
    "constant": lambda r, c, g: torch.ones(r, c, dtype=torch.float64),
    "one row": lambda r, c, g: only(r, c, (pick(r, g), ALL), randn(c, generator=g)),
    "one constant row": lambda r, c, g: only(r, c, (pick(r, g), ALL), 1.0),
    "one column": lambda r, c, g: only(r, c, (ALL, pick(c, g)), randn(r, generator=g)),
    "one constant column": lambda r, c, g: only(r, c, (ALL, pick(c, g)), 1.0),
    "two constant columns": lambda r, c, g: only(r, c, (ALL, slice(pick(c, g), None, max(1, c // 2))), 1.0),
    "every second row": lambda r, c, g: only(r, c, (slice(pick(2, g) % r, None, 2), ALL), 1.0),
    "every second column": lambda r, c, g: only(r, c, (ALL, slice(pick(2, g) % c, None, 2)), 1.0),
    "rank one": lambda r, c, g: torch.outer(randn(r, generator=g), randn(c, generator=g)),
    "the same bias in every row": lambda r, c, g: randn(c, generator=g).expand(r, c).clone(),
    "a number a row": lambda r, c, g: randn(r, generator=g)[:, None].expand(r, c).clone(),
    "block": block,
    "lower half": lambda r, c, g: only(r, c, (slice(r // 2, None), ALL), 1.0),
    "right half": lambda r, c, g: only(r, c, (ALL, slice(c // 2, None)), 1.0),
    "diagonal": lambda r, c, g: torch.eye(r, c, dtype=torch.float64),
    "ramp": lambda r, c, g: 1.0 + torch.arange(r * c, dtype=torch.float64).view(r, c),
    "alternating signs": lambda r, c, g: (1.0 - 2.0 * (torch.arange(r * c) % 2)).double().view(r, c),
    "heavy tails": lambda r, c, g: randn(r, c, generator=g) ** 7,
    "3 elements": lambda r, c, g: few(r, c, 3, g),
    "20 elements": lambda r, c, g: few(r, c, 20, g),
}
STRUCTURES |= {f"period {p}": (lambda r, c, g, p=p: period(r, c, p, g)) for p in PERIODS}


def ratio(base: torch.Tensor, delta: torch.Tensor, **where: RowKeys) -> float:
    """Return the estimated over the true relative error."""
    a, b = digest_tensor(base + delta, **where), digest_tensor(base, **where)
    return relative_error(a, b) / float(delta.norm() / base.norm())


def ratios(structure: str, seed: int) -> np.ndarray:
    """Return a ratio a shape."""
    g = torch.Generator().manual_seed(seed)
    found = []
    for rows, last in SHAPES:
        delta = STRUCTURES[structure](rows, last, g)
        found.append(ratio(randn(rows, last, generator=g), 1e-3 * delta))
    return np.array(found)


def share(found: np.ndarray) -> float:
    return float(np.mean((found >= 0.8) & (found <= 1.25)))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_estimate_is_good_for_every_structure(structure: str) -> None:
    found = ratios(structure, seed=len(structure))
    assert share(found) >= 0.95, sorted(np.round(found, 3))[:4] + sorted(np.round(found, 3))[-4:]
    assert 0.6 < found.min() <= found.max() < 1.5


@pytest.mark.parametrize("last", LAST_DIMS)
def test_a_single_element_is_measured_exactly(last: int) -> None:
    g = torch.Generator().manual_seed(last)
    for rows in (1, 10, 200, 1000):
        assert ratio(randn(rows, last, generator=g), few(rows, last, 1, g)) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("shape", [(1,), (3,), (128,), (2, 64), (10, 10), (1, 1, 100)], ids=str)
def test_small_tensors_are_measured_exactly(shape: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(1)
    assert ratio(randn(*shape, generator=g), 1e-3 * randn(*shape, generator=g)) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("structure", ["dense", "constant", "one row", "one constant column", "rank one", "3 elements"])
def test_activations_keyed_by_sample_are_measured_as_well(structure: str) -> None:
    g = torch.Generator().manual_seed(1)
    found = []
    for samples, rows, last in [(8, 1, 10), (32, 1, 64), (8, 16, 64), (8, 128, 256), (64, 1, 1), (6, 50, 100)] * 6:
        delta = STRUCTURES[structure](samples * rows, last, g).view(samples, rows, last)
        ids = np.random.default_rng(len(found)).integers(0, 2**64, samples, dtype=np.uint64)
        found.append(ratio(randn(samples, rows, last, generator=g), 1e-3 * delta, row_keys=RowKeys.of(ids)))
    assert share(np.array(found)) >= 0.95, np.round(found, 3)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(300, 96)
        layer = nn.TransformerEncoderLayer(96, 4, 384, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList([layer, nn.TransformerEncoderLayer(96, 4, 200, dropout=0.0, batch_first=True)])
        self.head = nn.Linear(96, 300)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def gradients(model: nn.Module, tokens: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    (scale * loss).backward()
    return {name: p.grad.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_errors_of_real_gradients_are_measured(dtype: torch.dtype) -> None:
    """Samples left out, one token changed, half the batch twice, a wrong scale."""
    torch.manual_seed(0)
    model, found = Transformer(), []
    tokens = torch.randint(300, (8, 33))
    reference = gradients(model, tokens)
    one_token, halved = tokens.clone(), tokens[[0, 1, 2, 3, 0, 1, 2, 3]]
    one_token[3, 7] = (one_token[3, 7] + 1) % 300
    for faulty, scale in [(tokens[:7], 1.0), (one_token, 1.0), (halved, 1.0), (tokens, 2.0)]:
        for name, gradient in gradients(model, faulty, scale).items():
            a, b = gradient.to(dtype), reference[name].to(dtype)
            true = float((a.double() - b.double()).norm() / b.double().norm())
            if true > 0.0:
                found.append(relative_error(digest_tensor(a), digest_tensor(b)) / true)
    assert len(found) > 100
    assert share(np.array(found)) >= 0.95, sorted(np.round(found, 3))
