"""Tiny random models of architectures that transformers' own classes run."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch

from tests.support.checkpoints import EOS, POSITIONS, VOCABULARY, WINDOW, scratch

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5, 1.0, 2.0, 1.0, 1.0, 1.0, 3.0],
    "long_factor": [4.0] * 8,
}
# By architecture, with a word after it where it has several kinds: the type of its configuration,
# and what that needs besides the sizes.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "ArceeForCausalLM": ("arcee", {}),
    "ApertusForCausalLM": ("apertus", {}),
    "CohereForCausalLM": ("cohere", {"logit_scale": 0.2}),
    "Cohere2ForCausalLM": ("cohere2", {"num_hidden_layers": 4, "sliding_window": WINDOW}),
    "Ernie4_5ForCausalLM": ("ernie4_5", {}),
    "Exaone4ForCausalLM": ("exaone4", {"sliding_window": WINDOW, "sliding_window_pattern": 2}),
    "GemmaForCausalLM": ("gemma", {}),
    "GlmForCausalLM": ("glm", {}),
    "Glm4ForCausalLM": ("glm4", {}),
    "Glm4MoeForCausalLM": (
        "glm4_moe",
        {
            **_MOE,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "GPT2LMHeadModel": ("gpt2", {"n_inner": 96}),
    "GPTNeoXForCausalLM": ("gpt_neox", {}),
    "GraniteForCausalLM": (
        "granite",
        {
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.3,
            "logits_scaling": 3.0,
        },
    ),
    "GraniteMoeForCausalLM": (
        "granitemoe",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "attention_multiplier": 0.3,
            "logits_scaling": 3.0,
        },
    ),
    "HeliumForCausalLM": ("helium", {}),
    "HunYuanDenseV1ForCausalLM": ("hunyuan_v1_dense", {}),
    "Ministral3ForCausalLM": ("ministral3", {}),
    "MinistralForCausalLM": ("ministral", {"sliding_window": WINDOW}),
    "MixtralForCausalLM": (
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    ),
    "NemotronForCausalLM": ("nemotron", {}),
    "OlmoForCausalLM": ("olmo", {}),
    "Olmo2ForCausalLM": ("olmo2", {}),
    "Olmo3ForCausalLM": ("olmo3", {"num_hidden_layers": 4, "sliding_window": WINDOW}),
    "OlmoeForCausalLM": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "PhiForCausalLM": ("phi", {}),
    "Phi3ForCausalLM": ("phi3", {"sliding_window": WINDOW}),
    "Phi3ForCausalLM longrope": (
        "phi3",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 128},
    ),
    "PhimoeForCausalLM": ("phimoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen2MoeForCausalLM": (
        "qwen2_moe",
        {**_MOE, "num_experts": 4, "shared_expert_intermediate_size": 48},
    ),
    "SeedOssForCausalLM": ("seed_oss", {}),
    "SmolLM3ForCausalLM": ("smollm3", {"no_rope_layer_interval": 2}),
    "StableLmForCausalLM": ("stablelm", {}),
    "Starcoder2ForCausalLM": ("starcoder2", {"sliding_window": WINDOW}),
}


@functools.cache
def breadth_checkpoint(kind: str) -> Path:
    """Return the directory of a tiny model of a kind, the same for the whole run."""
    from transformers import AutoConfig, AutoModelForCausalLM

    directory = scratch() / kind
    model_type, needs = CONFIGS[kind]
    sizes = {name: size for name, size in {**_SIZES, **needs}.items() if size is not None}
    config = AutoConfig.for_model(model_type, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() > 1:
            embeds = "emb" in name or "wte" in name or "wpe" in name
            weight.data = noise * (0.5 if embeds else 1.5 * weight.shape[-1] ** -0.5)
        elif name.endswith("bias"):
            weight.data = noise * 0.3
        else:
            weight.data = weight.data + noise * 0.2
    model.save_pretrained(directory)
    found = json.loads((directory / "config.json").read_text())
    assert found["architectures"] == [kind.split()[0]]
    return directory
