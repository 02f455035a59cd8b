"""Models that others wrote, as PyTorch exports them: torch.nn, torchvision and transformers.

Each function returns a module with random weights and its arguments; sizes are small.
"""


def encoder():
    import torch

    layer = torch.nn.TransformerEncoderLayer(
        256, 4, 1024, activation="gelu", batch_first=True, norm_first=True, dropout=0.0
    )
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, (torch.randn(2, 64, 256),)


def bert():
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=1024,
        vocab_size=1000,
    )
    ids = torch.randint(0, 1000, (2, 64))
    return _first(BertModel(config)), (ids, torch.ones(2, 64, dtype=torch.long))


def resnet():
    import torch
    import torchvision

    return torchvision.models.resnet18(weights=None), (torch.randn(2, 3, 64, 64),)


def convnext():
    import torch
    import torchvision

    return torchvision.models.convnext_tiny(weights=None), (torch.randn(2, 3, 64, 64),)


def vision():
    import torch
    import torchvision

    model = torchvision.models.VisionTransformer(
        image_size=64, patch_size=16, num_layers=2, num_heads=4, hidden_dim=256, mlp_dim=512
    )
    torch.nn.init.normal_(model.heads.head.weight)  # zeros otherwise
    return model, (torch.randn(2, 3, 64, 64),)


OF_EXPERTS = {
    "hidden_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
}


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**OF_EXPERTS, num_local_experts=4)
    return _experts(MixtralForCausalLM, config)


def qwen():
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    more = {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 256}
    config = Qwen2MoeConfig(**OF_EXPERTS, **more, num_experts=4)
    return _experts(Qwen2MoeForCausalLM, config)


MODELS = {x.__name__: x for x in (encoder, bert, vision, resnet, convnext, mixtral, qwen)}
EXPERTS = ("mixtral", "qwen")


def _experts(kind, config):
    import torch

    config._experts_implementation = "batched_mm"  # the only one that TVM imports
    ids = torch.randint(0, 512, (1, 32))
    # Without a mask packed sequences are looked for by a sum of bools, whose kernel, TVM's own,
    # stores vectors of bools as if they had two bytes each: a misaligned address on an H200.
    return _first(kind(config), use_cache=False), (ids, torch.ones(1, 32, dtype=torch.long))


def _first(model, **more):
    """Let a model return its first tensor alone."""
    import torch

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask=None):
            given = {"attention_mask": mask} if mask is not None else {}
            return self.model(ids, return_dict=False, **given, **more)[0]

    return First()


def exported(name, dtype="float32", **options):
    """Return a model, its arguments, and the Relax module that TVM's importer makes of it."""
    import torch
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    torch.manual_seed(0)
    model, arguments = MODELS[name]()
    model = model.eval()
    with torch.no_grad():
        mod = from_exported_program(torch.export.export(model, arguments), **options)
    if dtype != "float32":
        mod = relax.transform.ToMixedPrecision(out_dtype=dtype)(mod)
    return model, arguments, mod
