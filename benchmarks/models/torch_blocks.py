"""Blocks of diffusion models, as their authors write them; PyTorch alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as f


def _attend(x: Any, heads: int, qkv: Any) -> Any:
    """Attend over the places of (batch, places, width)."""
    batch, places, width = x.shape
    parts = qkv(x).reshape(batch, places, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    mixed = f.scaled_dot_product_attention(parts[0], parts[1], parts[2])
    return mixed.transpose(1, 2).reshape(batch, places, width)


class UNetBlock(nn.Module):
    """Group norm, silu and convolution twice, with a step's embedding; then attention."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32 if channels >= 64 else 8, channels)
                                   for _ in range(3))  # fmt: skip
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.step = nn.Linear(4 * channels, channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.heads = max(channels // 64, 1)

    def forward(self, x: Any, step: Any) -> Any:
        """Return the block's output for an image and a step."""
        y = self.convs[0](f.silu(self.norms[0](x)))
        y = y + self.step(f.silu(step))[:, :, None, None]
        x = x + self.convs[1](f.silu(self.norms[1](y)))
        batch, channels, height, width = x.shape
        flat = self.norms[2](x).reshape(batch, channels, height * width).transpose(1, 2)
        mixed = self.out(_attend(flat, self.heads, self.qkv)).transpose(1, 2)
        return x + mixed.reshape(batch, channels, height, width)

    @classmethod
    def drawn(cls, batch: int, channels: int, side: int) -> tuple[Any, tuple[Any, ...]]:
        """Return a block and its arguments."""
        image, step = torch.randn(batch, channels, side, side), torch.randn(batch, 4 * channels)
        return cls(channels), (image, step)


class DiTBlock(nn.Module):
    """Attention and two linear layers, whose norms a condition scales, shifts and gates."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.condition, self.heads = nn.Linear(width, 6 * width), heads

    def forward(self, x: Any, c: Any) -> Any:
        """Return the block's output for tokens and a condition."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(f.silu(c))[:, None].chunk(
            6, -1
        )
        y = self.norm(x) * (1 + scale1) + shift1
        x = x + gate1 * self.out(_attend(y, self.heads, self.qkv))
        y = self.norm(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(f.gelu(self.up(y), approximate="tanh"))

    @classmethod
    def drawn(cls, batch: int, width: int, heads: int, places: int) -> tuple[Any, tuple[Any, ...]]:
        """Return a block and its arguments."""
        return cls(width, heads), (torch.randn(batch, places, width), torch.randn(batch, width))
