"""Models of other kinds, out of TVM's own modules: an encoder, convolutions, experts."""

from __future__ import annotations

import tvm
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op, spec


class Encoder(nn.Module):
    """LayerNorm behind the residual, attention of several heads, gelu."""

    def __init__(self, width=128, heads=4, inner=256):
        self.heads, self.width = heads, width
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x):
        b, s, _ = x.shape
        heads = self.qkv(x).reshape(b, s, 3 * self.heads, self.width // self.heads)
        q, k, v = op.split(heads, 3, 2)
        mixed = op.scaled_dot_product_attention(q, k, v).reshape(b, s, self.width)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(op.gelu(self.up(x))))


class Convolutions(nn.Module):
    """Two convolutions around a residual, pooled and scored."""

    def __init__(self, channels=32, classes=40):
        self.stem = nn.Conv2D(3, channels, 3, padding=1)
        self.conv = nn.Conv2D(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(8, channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        x = op.relu(self.stem(x))
        x = op.relu(self.norm(self.conv(x)) + x)
        pooled = op.sum(x, [2, 3]) / 64.0
        return self.head(pooled)


class Experts(nn.Module):
    """Each token by the sum of all experts, weighted by a softmax of its scores."""

    def __init__(self, width=64, inner=128, experts=4):
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter((experts, width, inner))
        self.down = nn.Parameter((experts, inner, width))
        self.experts = experts

    def forward(self, x):
        weights = op.softmax(self.gate(x), -1)
        each = op.broadcast_to(op.unsqueeze(x, 0), [self.experts, *x.shape])
        found = op.matmul(op.silu(op.matmul(each, self.up)), self.down)
        scale = op.unsqueeze(op.permute_dims(weights, [1, 0]), -1)
        return op.sum(found * scale, 0)


KINDS = {
    "encoder": (Encoder, ["batch", "length", 128]),
    "convolutions": (Convolutions, ["batch", 3, 8, 8]),
    "experts": (Experts, ["tokens", 64]),
}


def export(kind: str, dtype: str = "float16") -> tvm.IRModule:
    """Return a model with one function, "forward", whose weights are arguments."""
    make, shape = KINDS[kind]
    model = make()
    model.to(dtype)
    inputs = {"x": spec.Tensor(shape, dtype), "$": {"param_mode": "packed", "effect_mode": "none"}}
    whole = spec.ModuleSpec.from_raw({"forward": inputs}, model)
    return model.export_tvm(spec=whole)[0]
