"""The models that are measured, the most telling ones first: data, and no import of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

EXPORT, ONNX, NN = "torch.export", "ONNX", "TVM nn"
# How a model gets its type: the module's own, or float32 that `relax.to_half` makes 16 bits.
FLOAT16, BFLOAT16, FLOAT32, MIXED = "float16", "bfloat16", "float32", "mixed"


@dataclass(frozen=True)
class Case:
    """One model with one set of inputs: a row of the table.

    Attributes
    ----------
    name : str
        Unique, for `--only`.
    way : str
        How it comes into Relax.
    dtype : str
        Its floats; "mixed": float32, of which `relax.to_half` makes float16, as PyTorch's `half()`
        does for its side.
    sizes : str
        In words, for the table.
    make : str
        Function of the module that `way` has its models in.
    given : dict
        Its arguments.
    budget : float
        Seconds after which the process of this model is ended.
    is_timed : bool
        False: errors alone.
    hoists : bool
        Whether what its weights alone determine is made before (`relax.hoist_weights`).
    is_routed : bool
        Whether tokens go to experts: rounding may send one elsewhere, so that the error is that of
        the median token.
    """

    name: str
    way: str
    dtype: str
    sizes: str
    make: str
    given: dict[str, Any] = field(default_factory=dict)
    budget: float = 240.0
    is_timed: bool = True
    is_routed: bool = False
    hoists: bool = False


def _decoders() -> list[Case]:
    prefill = {"batch": 1, "length": 2048}
    found = [
        Case("llama_prefill", EXPORT, FLOAT16, "2 layers of Llama-3-8B, 1 x 2048", "llama", prefill)
    ]
    for batch in (1, 64):
        step = {"batch": batch, "length": 1, "past": 1024}
        sizes = f"2 layers of Llama-3-8B, decode {batch} after 1024"
        found.append(Case(f"llama_decode_{batch}", EXPORT, FLOAT16, sizes, "llama", step))
    for name, sizes in (
        ("qwen", "2 layers of Qwen3-8B"),
        ("gemma", "2 layers of Gemma-2-9B: softcap, windows"),
    ):
        found.append(Case(f"{name}_prefill", EXPORT, BFLOAT16, f"{sizes}, 1 x 2048", name, prefill))
        step = {"batch": 1, "length": 1, "past": 1024}
        found.append(
            Case(f"{name}_decode_1", EXPORT, BFLOAT16, f"{sizes}, decode 1 after 1024", name, step)
        )
    for name, sizes in (
        ("mixtral", "2 layers, 8 experts, 256 tokens"),
        ("deepseek", "latent attention, 16 experts, 2 layers, 256 tokens"),
    ):
        tokens = {"batch": 1, "length": 256}
        found.append(Case(name, EXPORT, FLOAT16, sizes, name, tokens, is_routed=True))
    return found


def _paged() -> list[Case]:
    found = []
    for attention in ("paged", "none"):
        words = "paged cache" if attention == "paged" else "without attention"
        for batch, length in ((1, 2048), (1, 1), (16, 1), (128, 1)):
            step = "prefill" if length > 1 else f"decode_{batch}"
            tokens = f"1 x {length}" if length > 1 else f"decode {batch}"
            given = {"attention": attention, "batch": batch, "length": length}
            sizes = f"4 layers of Llama-3-8B, {words}, {tokens}"
            found.append(Case(f"{attention}_{step}", NN, FLOAT16, sizes, "llama", given))
    return found


def _others() -> list[Case]:
    def case(name: str, dtype: str, sizes: str, way: str = EXPORT, **given: Any) -> Case:
        make = name.split("_")[0]
        return Case(name, way, dtype, sizes, make, given, hoists=make in ("resnet", "convnext"))

    return [
        case("encoder", MIXED, "torch.nn, 4 x 1024, 8 x 1024 tokens", batch=8),
        case("bert_32", MIXED, "BERT base, 4 layers, 32 x 256", batch=32),
        case("vit_32", MIXED, "4 x 768, 32 images", batch=32),
        case("linear", MIXED, "four linear layers of 4096 with gelu, 1024 rows"),
        case("resnet_32", FLOAT16, "ResNet-50, 32 images", batch=32),
        case("convnext_32", FLOAT16, "ConvNeXt tiny, 32 images", batch=32),
        case("swin_32", MIXED, "Swin tiny, 32 images", batch=32),
        case("dit", FLOAT16, "a DiT-XL block, 32 x 256 tokens", batch=32),
        case("unet", FLOAT16, "a block of a diffusion UNet, 2 x 320 x 64 x 64", batch=2),
        case("t5", BFLOAT16, "T5 base, 4 + 4 layers, 8 x 512 and 128", batch=8),
        case("whisper", FLOAT16, "Whisper small, 4 + 4 layers, 3000 frames", batch=1),
        case("clip", FLOAT16, "CLIP ViT-B/32, 32 images and texts", batch=32),
        case("modernbert", BFLOAT16, "ModernBERT base, 4 layers, 8 x 1024", batch=8),
        case("bert_1", MIXED, "BERT base, 4 layers, 1 x 256", batch=1),
        case("vit_1", MIXED, "4 x 768, 1 image", batch=1),
        case("resnet_1", FLOAT16, "ResNet-50, 1 image", batch=1),
        case("bert_onnx", MIXED, "BERT base, 4 layers, 8 x 256", ONNX, batch=8, is_masked=False),
        case("resnet_onnx", FLOAT16, "ResNet-50, 8 images", ONNX, batch=8),
        Case("lstm", EXPORT, FLOAT16, "2 layers of 1024, 4 x 16 steps", "lstm", {}, is_timed=False),
        Case("mamba", EXPORT, FLOAT16, "1 layer of 768, 1 x 16", "mamba", {}, is_timed=False),
    ]


CASES: tuple[Case, ...] = (*_decoders()[:1], *_others()[:4], *_paged()[:2], *_decoders()[1:],
                           *_others()[4:], *_paged()[2:])  # fmt: skip


def chosen(only: Sequence[str], cases: Sequence[Case] = CASES) -> list[Case]:
    """Return the cases whose names contain one of some words, all for none.

    Raises
    ------
    ValueError
        A word is in no name.
    """
    for word in only:
        if not any(word in x.name for x in cases):
            known = ", ".join(x.name for x in cases)
            raise ValueError(f"--only {word}: found no such model; need a part of one of {known}")
    return [x for x in cases if not only or any(word in x.name for word in only)]


def find_maker(module: Any, case: Case) -> Callable[..., Any]:
    """Return the function that makes a case's model."""
    return getattr(module, case.make)  # type: ignore[no-any-return]
