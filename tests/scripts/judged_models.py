"""Models that a healthy distributed run must not be blamed for: norms, zero starts, frozen and unused parts."""

import torch
import torch.nn.functional as F
from torch import nn

CLASSES, FEATURES, VOCABULARY, LENGTH = 10, 24, 40, 8


def mlp(width=32, depth=2, activation=nn.GELU):
    layers = [nn.Linear(FEATURES, width), activation()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), activation()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def relu_mlp():
    return mlp(activation=nn.ReLU)


def small_mlp():
    return mlp(width=16, depth=1, activation=nn.Tanh)


def wide_mlp():
    return mlp(width=512, depth=2)


def huge_mlp():
    """So many elements that some gradients are rounding alone: Adam moves those by its whole learning rate."""
    return mlp(width=2048, depth=2, activation=nn.ReLU)


def deep_mlp():
    """60 layers: gradients of the first ones are tiny, and rounding has a long way to go."""
    return mlp(width=16, depth=60, activation=nn.Tanh)


def deep_relu_mlp():
    return mlp(width=24, depth=40, activation=nn.ReLU)


class Residual(nn.Module):
    """A residual branch that starts at zero: its gradients vanish in step 0, and those in front of it."""

    def __init__(self):
        super().__init__()
        self.inner, self.gate, self.head = (
            nn.Linear(FEATURES, 32),
            nn.Linear(32, FEATURES),
            nn.Linear(FEATURES, CLASSES),
        )
        self.scale = nn.Parameter(torch.zeros(FEATURES))
        for zero in (self.gate.weight, self.gate.bias, self.head.weight, self.head.bias):
            nn.init.zeros_(zero)

    def forward(self, x):
        return self.head(x + self.gate(F.silu(self.inner(x))) + self.scale * x)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Norms(nn.Module):
    """Biases in front of norms: LayerNorm hides a shift of all features, GroupNorm one of a group."""

    def __init__(self):
        super().__init__()
        self.one, self.layer = nn.Linear(FEATURES, 32), nn.LayerNorm(32)
        self.two, self.rms = nn.Linear(32, 32), RMSNorm(32)
        self.three, self.group = nn.Linear(32, 32), nn.GroupNorm(4, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x):
        x = F.relu(self.layer(self.one(x)))
        x = F.relu(self.rms(self.two(x)))
        x = x + self.group(self.three(x))
        return self.head(x)


class CNN(nn.Module):
    """A convolution with a bias in front of a norm of one channel a group: that bias has no gradient at all."""

    def __init__(self, norm="group"):
        super().__init__()
        self.one = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8) if norm == "batch" else nn.GroupNorm(8 if norm == "instance" else 2, 8)
        self.two, self.act, self.head = nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(inplace=True), nn.Linear(16, CLASSES)

    def forward(self, x):
        x = self.act(self.norm(self.one(x.view(-1, 1, 4, 6))))
        return self.head(self.act(self.two(x)).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.n1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.n1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.proj(mixed))
        return x + self.dropout(self.down(F.gelu(self.up(self.n2(x)))))


class GPT(nn.Module):
    """Tied head, learned positions, one matrix for queries, keys and values; the bias of the keys has no gradient."""

    def __init__(self, width=32, heads=4, layers=2, dropout=0.0, tied=True, vocabulary=VOCABULARY):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tok.weight

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def big_gpt():
    return GPT(width=128, heads=4, layers=2, tied=False)


class Recurrent(nn.Module):
    """A padding row that gets no gradient, tokens that never come, a GRU."""

    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, 16, padding_idx=0)
        self.gru, self.head = nn.GRU(16, 24, batch_first=True), nn.Linear(24, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.gru(self.tok(tokens % 30))[0])


class Encoder(nn.Module):
    """torch's own transformer layer: separate in-projection bias, norms after the residual."""

    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.encoder(self.tok(tokens)))


class MoE(nn.Module):
    """Experts that see few samples or none, chosen by a gate: parameters are unused on some ranks."""

    def __init__(self, width=24, experts=4):
        super().__init__()
        self.enter, self.gate, self.leave = (
            nn.Linear(FEATURES, width),
            nn.Linear(width, experts),
            nn.Linear(width, CLASSES),
        )
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(experts)]
        )

    def forward(self, x):
        x = self.enter(x)
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            rows = mine.any(-1)
            if rows.any():
                out[rows] = out[rows] + expert(x[rows]) * (weights * mine).sum(-1, keepdim=True)[rows]
        return self.leave(x + out)


class Usage(nn.Module):
    """Returns what the batch comes to, without a row a sample: as routers return load, and models their loss."""

    def forward(self, x):
        return x.softmax(-1).sum(0), x.square().mean()


class Counted(nn.Module):
    """Modules whose outputs have no row a sample: numbers of the batch, and a table of positions."""

    def __init__(self):
        super().__init__()
        self.enter, self.usage, self.table, self.leave = (
            nn.Linear(FEATURES, 32),
            Usage(),
            nn.Embedding(8, 32),
            nn.Linear(32, CLASSES),
        )

    def forward(self, x):
        x = self.enter(x)
        usage, _ = self.usage(x)
        places = torch.arange(8) + int(getattr(self, "shifted", False))
        return self.leave(F.relu(x)) + 0 * usage.sum() + self.table(places % 8).sum() * 1e-3


class Unused(nn.Module):
    """A branch that is never taken, and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.one, self.never, self.two = nn.Linear(FEATURES, 32), nn.Linear(32, 32), nn.Linear(32, CLASSES)
        self.frozen = nn.Linear(32, 32).requires_grad_(False)

    def forward(self, x):
        return self.two(F.relu(self.frozen(F.relu(self.one(x)))))


MODELS = {
    "mlp": mlp, "relu": relu_mlp, "tanh": small_mlp, "wide": wide_mlp, "huge": huge_mlp, "deep": deep_mlp,
    "deeprelu": deep_relu_mlp, "zero": Residual, "norms": Norms, "cnn": CNN, "cnn1": lambda: CNN("instance"),
    "bn": lambda: CNN("batch"), "gpt": GPT, "gptdrop": lambda: GPT(dropout=0.2), "biggpt": big_gpt, "gru": Recurrent,
    "encoder": Encoder, "moe": MoE, "unused": Unused, "counted": Counted,
}  # fmt: skip
ON_TOKENS = {"gpt", "gptdrop", "biggpt", "gru", "encoder"}
