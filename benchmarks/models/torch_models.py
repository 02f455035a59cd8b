"""Models that PyTorch's users bring, with random weights: a function each.

A function returns a module and its arguments, in float32 on the processor. `tiny` has the same
operators at sizes that a laptop exports in seconds. Nothing is imported before it is called.
"""

from __future__ import annotations

from typing import Any

Made = tuple[Any, tuple[Any, ...]]


# -- decoders: transformers ------------------------------------------------------------


def llama(batch: int, length: int, past: int = 0, tiny: bool = False) -> Made:
    """Return layers of a Llama-3-8B, and what scores the tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _decoder(LlamaForCausalLM, LlamaConfig, _llama_sizes(tiny), batch, length, past)


def qwen(batch: int, length: int, past: int = 0, tiny: bool = False) -> Made:
    """Return layers of a Qwen3-8B: norms of queries and keys."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {**_llama_sizes(tiny), "head_dim": 32 if tiny else 128}
    sizes["intermediate_size"] = 256 if tiny else 12288
    return _decoder(Qwen3ForCausalLM, Qwen3Config, sizes, batch, length, past)


def gemma(batch: int, length: int, past: int = 0, tiny: bool = False) -> Made:
    """Return a layer with windows and one without, of a Gemma-2-9B: scores are capped."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = _llama_sizes(tiny)
    if not tiny:
        sizes |= {"hidden_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8}
    sizes |= {"head_dim": 32 if tiny else 256, "sliding_window": 16 if tiny else 1024}
    sizes["attn_implementation"] = "eager"  # sdpa has no cap
    return _decoder(Gemma2ForCausalLM, Gemma2Config, sizes, batch, length, past)


def mixtral(batch: int, length: int, tiny: bool = False) -> Made:
    """Return a decoder with 8 experts, 2 for each token."""
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {**_expert_sizes(tiny), "num_local_experts": 4 if tiny else 8}
    return _decoder(MixtralForCausalLM, MixtralConfig, sizes, batch, length)


def deepseek(batch: int, length: int, tiny: bool = False) -> Made:
    """Return a decoder with latent attention, one dense layer and one of 16 experts."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    sizes = _expert_sizes(tiny) | {
        "num_key_value_heads": 4 if tiny else 16,
        "moe_intermediate_size": 64 if tiny else 1408,
        "n_routed_experts": 4 if tiny else 16,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "num_hidden_layers": 2,
        "q_lora_rank": 64 if tiny else 1536,
        "kv_lora_rank": 32 if tiny else 512,
        "qk_nope_head_dim": 32 if tiny else 128,
        "qk_rope_head_dim": 16 if tiny else 64,
        "v_head_dim": 32 if tiny else 128,
    }
    model, arguments = _decoder(DeepseekV3ForCausalLM, DeepseekV3Config, sizes, batch, length)
    return _with_sorted_topk(model), arguments


def _with_sorted_topk(model: Any) -> Any:
    """Let a model's topk be sorted: TVM's importer knows no other."""
    import torch

    class Sorted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: Any) -> Any:
            topk = torch.topk
            torch.topk = lambda *x, **more: topk(*x, **{**more, "sorted": True})
            try:
                return self.model(*given)
            finally:
                torch.topk = topk

    return Sorted()


def _llama_sizes(tiny: bool) -> dict[str, Any]:
    small = {
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 512,
        "num_hidden_layers": 2,
    }
    large = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "num_hidden_layers": 2,
    }
    return small if tiny else large


def _expert_sizes(tiny: bool) -> dict[str, Any]:
    sizes = _llama_sizes(tiny)
    if not tiny:
        sizes |= {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4}
        sizes["intermediate_size"] = 3584
    return sizes


def _decoder(
    kind: Any, config: Any, sizes: dict[str, Any], batch: int, length: int, past: int = 0
) -> Made:
    """Return a decoder that takes tokens, and keys and values so far of each layer."""
    import torch

    whole = config(**{"attn_implementation": "sdpa", "pad_token_id": 0, **sizes})
    whole._experts_implementation = "batched_mm"  # the only one that TVM imports
    model = kind(whole)
    heads = whole.num_key_value_heads
    width = getattr(whole, "head_dim", None) or whole.hidden_size // whole.num_attention_heads
    ids = torch.randint(0, whole.vocab_size, (batch, length))
    kept = [torch.randn(batch, heads, past, width) for _ in range(2 * whole.num_hidden_layers)]
    return _with_past(model, past), (ids, *(kept if past else ()))


def _with_past(model: Any, length: int) -> Any:
    """Let a decoder take keys and values as tensors, and return the scores of the last token."""
    import torch
    from transformers import DynamicCache

    class Past(DynamicCache):
        def __init__(self, tensors: Any) -> None:
            super().__init__()
            self.tensors = tensors

        def update(self, keys: Any, values: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
            before = self.tensors[2 * layer_idx : 2 * layer_idx + 2]
            return tuple(torch.cat([x, y], 2) for x, y in zip(before, (keys, values), strict=True))

        def get_seq_length(self, *_: Any, **__: Any) -> int:
            return length

        def get_mask_sizes(self, query: Any, *_: Any, **__: Any) -> tuple[int, int]:
            return length + (query if isinstance(query, int) else query.shape[0]), 0

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, *past: Any) -> Any:
            # Without a mask packed sequences are looked for by a sum of bools, whose kernel, TVM's
            # own, stores vectors of bools as if they had two bytes each.
            mask = torch.ones(ids.shape[0], length + ids.shape[1], dtype=torch.long)
            more = {"past_key_values": Past(past), "use_cache": True} if past else {}
            more = more or {"use_cache": False}
            return self.model(
                ids, attention_mask=mask.to(ids.device), return_dict=False, logits_to_keep=1, **more
            )[0]

    return Decoder()


# -- encoders ------------------------------------------------------------------------


def encoder(batch: int, tiny: bool = False) -> Made:
    """Return the encoder of torch.nn."""
    import torch

    width, length, layers = (128, 64, 1) if tiny else (1024, 1024, 4)
    layer = torch.nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, activation="gelu", batch_first=True, norm_first=True,
        dropout=0.0,
    )  # fmt: skip
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return model, (torch.randn(batch, length, width),)


def bert(batch: int, is_masked: bool = True, tiny: bool = False) -> Made:
    """Return layers of a BERT base; TVM does not import the mask from an ONNX file."""
    import torch
    from transformers import BertConfig, BertModel

    small = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256}
    config = BertConfig(num_hidden_layers=1 if tiny else 4, **(small if tiny else {}))
    ids = torch.randint(0, 1000, (batch, 32 if tiny else 256))
    names, given = ("input_ids", "attention_mask"), (ids, torch.ones_like(ids))
    count = 2 if is_masked else 1
    return _first(BertModel(config), *names[:count]), given[:count]


def modernbert(batch: int, tiny: bool = False) -> Made:
    """Return layers of a ModernBERT base: windows, rotary places, gated gelu."""
    import torch
    from transformers import ModernBertConfig, ModernBertModel

    small = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256}
    config = ModernBertConfig(
        num_hidden_layers=1 if tiny else 4, attn_implementation="sdpa", **(small if tiny else {})
    )
    ids = torch.randint(0, 1000, (batch, 32 if tiny else 1024))
    return _first(ModernBertModel(config), "input_ids", "attention_mask"), (
        ids,
        torch.ones_like(ids),
    )


def t5(batch: int, tiny: bool = False) -> Made:
    """Return layers of a T5 base, encoder and decoder."""
    import torch
    from transformers import T5Config, T5Model

    small = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_heads": 4}
    large = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_heads": 12}
    layers = 1 if tiny else 4
    config = T5Config(num_layers=layers, num_decoder_layers=layers, **(small if tiny else large))
    source = torch.randint(0, 1000, (batch, 32 if tiny else 512))
    target = torch.randint(0, 1000, (batch, 16 if tiny else 128))
    names = ("input_ids", "decoder_input_ids")
    return _first(T5Model(config), *names, use_cache=False), (source, target)


def whisper(batch: int, tiny: bool = False) -> Made:
    """Return layers of a Whisper small: convolutions, encoder and decoder."""
    import torch
    from transformers import WhisperConfig, WhisperModel

    layers, width = (1, 128) if tiny else (4, 768)
    sizes = {"d_model": width, "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width}
    sizes |= {"encoder_layers": layers, "decoder_layers": layers}
    sizes |= {"encoder_attention_heads": width // 64, "decoder_attention_heads": width // 64}
    config = WhisperConfig(max_source_positions=32 if tiny else 1500, **sizes)
    frames = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)
    target = torch.randint(0, 1000, (batch, 8 if tiny else 64))
    names = ("input_features", "decoder_input_ids")
    return _first(WhisperModel(config), *names, use_cache=False), (frames, target)


def clip(batch: int, tiny: bool = False) -> Made:
    """Return a CLIP ViT-B/32: images and texts."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    small = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2,
             "num_hidden_layers": 1}  # fmt: skip
    given = {"text_config": small, "vision_config": small | {"image_size": 64}} if tiny else {}
    config = CLIPConfig(**given)
    ids = torch.randint(0, 1000, (batch, 16 if tiny else 77))
    side = 64 if tiny else 224
    names = ("input_ids", "pixel_values", "attention_mask")
    return _first(CLIPModel(config), *names), (
        ids,
        torch.randn(batch, 3, side, side),
        torch.ones_like(ids),
    )


def _first(model: Any, *names: str, **fixed: Any) -> Any:
    """Let a model take tensors by place, and return its first one."""
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: Any) -> Any:
            named = dict(zip(names, given, strict=True))
            return self.model(**named, return_dict=False, **fixed)[0]

    return First()


# -- images ------------------------------------------------------------------------


def vit(batch: int, tiny: bool = False) -> Made:
    """Return layers of a ViT-B/16 of torchvision."""
    import torch
    import torchvision

    sizes = (32, 16, 1, 2, 128, 256) if tiny else (224, 16, 4, 12, 768, 3072)
    names = ("image_size", "patch_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim")
    model = torchvision.models.VisionTransformer(**dict(zip(names, sizes, strict=True)))
    torch.nn.init.normal_(model.heads.head.weight)  # zeros otherwise
    return model, (torch.randn(batch, 3, sizes[0], sizes[0]),)


def swin(batch: int, tiny: bool = False) -> Made:
    """Return a Swin of timm, windows that are shifted: torchvision's is not imported by TVM."""
    import timm
    import torch

    small = {"embed_dim": 32, "depths": (2, 2), "num_heads": (1, 2), "num_classes": 10}
    side, more = (56, small) if tiny else (224, {})
    name = "swin_tiny_patch4_window7_224"
    return timm.create_model(name, img_size=side, **more), (torch.randn(batch, 3, side, side),)


def resnet(batch: int, tiny: bool = False) -> Made:
    """Return a ResNet-50 of torchvision; a ResNet-18 if tiny."""
    import torch
    import torchvision

    make = torchvision.models.resnet18 if tiny else torchvision.models.resnet50
    side = 32 if tiny else 224
    return make(weights=None), (torch.randn(batch, 3, side, side),)


def convnext(batch: int, tiny: bool = False) -> Made:
    """Return a ConvNeXt tiny of torchvision."""
    import torch
    import torchvision

    side = 32 if tiny else 224
    return torchvision.models.convnext_tiny(weights=None), (torch.randn(batch, 3, side, side),)


def unet(batch: int, tiny: bool = False) -> Made:
    """Return a block of a diffusion UNet: group norms, convolutions, attention of places."""
    from .torch_blocks import UNetBlock

    return UNetBlock.drawn(batch, *((32, 8) if tiny else (320, 64)))


def dit(batch: int, tiny: bool = False) -> Made:
    """Return a block of a DiT-XL: norms that a condition scales and shifts."""
    from .torch_blocks import DiTBlock

    return DiTBlock.drawn(batch, *((128, 2, 16) if tiny else (1152, 16, 256)))


# -- the rest ------------------------------------------------------------------------


def linear(tiny: bool = False) -> Made:
    """Return four linear layers with gelu between them."""
    import torch

    width, rows = (128, 32) if tiny else (4096, 1024)
    layers = [x for _ in range(4) for x in (torch.nn.Linear(width, width), torch.nn.GELU())]
    return torch.nn.Sequential(*layers[:-1]), (torch.randn(rows, width),)


def lstm(tiny: bool = False) -> Made:
    """Return an LSTM of two layers, unrolled by the importer."""
    import torch

    width = 32 if tiny else 1024
    model = torch.nn.LSTM(width, width, 2, batch_first=True)

    class Outputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(x)[0]

    return Outputs(), (torch.randn(4, 4 if tiny else 16, width),)


def mamba(tiny: bool = False) -> Made:
    """Return a layer of a Mamba, its scan unrolled."""
    import torch
    from transformers import MambaConfig, MambaModel

    width, length = (32, 4) if tiny else (768, 16)
    config = MambaConfig(hidden_size=width, num_hidden_layers=1, vocab_size=1000)
    model = _first(MambaModel(config), "input_ids", use_cache=False)
    return model, (torch.randint(0, 1000, (1, length)),)
