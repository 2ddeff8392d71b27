"""Tiny transformers models with experts and random weights, made without the hub."""

from __future__ import annotations

import tiny_transformers
import torch
import transformers

_COMMON = dict(
    vocab_size=tiny_transformers.VOCABULARY,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=0,
)

# name: (configuration class, model class, arguments)
MODELS = {
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        dict(intermediate_size=96, num_local_experts=4, num_experts_per_tok=2),
    ),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        dict(
            intermediate_size=96,
            moe_intermediate_size=40,
            shared_expert_intermediate_size=56,
            num_experts=6,
            num_experts_per_tok=3,
            decoder_sparse_step=1,
        ),
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        dict(
            intermediate_size=96,
            moe_intermediate_size=36,
            head_dim=16,
            num_experts=8,
            num_experts_per_tok=2,
            decoder_sparse_step=1,
        ),
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        dict(
            intermediate_size=96,
            moe_intermediate_size=40,
            n_routed_experts=8,
            n_group=4,
            topk_group=2,
            num_experts_per_tok=3,
            first_k_dense_replace=1,
            num_key_value_heads=4,
            q_lora_rank=32,
            kv_lora_rank=24,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=16,
        ),
    ),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        dict(intermediate_size=72, head_dim=16, sliding_window=6, num_local_experts=4, num_experts_per_tok=2),
    ),
}


def model(name: str, **options) -> torch.nn.Module:
    """A causal language model of MODELS, float32, in evaluation mode. options: of its configuration."""
    config_class, model_class, arguments = MODELS[name]
    config = getattr(transformers, config_class)(**{**_COMMON, **arguments, **options})
    return tiny_transformers.initialised(getattr(transformers, model_class)(config))
