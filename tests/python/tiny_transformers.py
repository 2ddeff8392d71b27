"""Tiny transformers models with random weights, made without the hub."""

from __future__ import annotations

import torch
import transformers

VOCABULARY = 96
_COMMON = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=4, pad_token_id=0
)
_GQA = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)

# name: (configuration class, model class, arguments)
DECODERS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _GQA),
    "mistral": ("MistralConfig", "MistralForCausalLM", dict(sliding_window=6, **_GQA)),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _GQA),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", dict(head_dim=24, **_GQA)),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        dict(head_dim=16, sliding_window=6, attn_logit_softcapping=1.5, query_pre_attn_scalar=4, **_GQA),
    ),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        dict(head_dim=16, sliding_window=6, num_local_experts=4, num_experts_per_tok=2, **_GQA),
    ),
}


def decoder(name: str, **options) -> torch.nn.Module:
    """A causal language model of DECODERS, float32, in evaluation mode. options: of its configuration."""
    config_class, model_class, arguments = DECODERS[name]
    config = getattr(transformers, config_class)(**{**_COMMON, **arguments, **options})
    return initialised(getattr(transformers, model_class)(config))


def modernbert() -> torch.nn.Module:
    """Layers with a window both ways between global ones."""
    config = transformers.ModernBertConfig(
        **_COMMON, num_attention_heads=4, local_attention=6, global_attn_every_n_layers=3
    )
    return initialised(transformers.ModernBertModel(config))


def bert() -> torch.nn.Module:
    config = transformers.BertConfig(**_COMMON, num_attention_heads=4, max_position_embeddings=64)
    return initialised(transformers.BertModel(config))


def bart() -> torch.nn.Module:
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    return initialised(transformers.BartForConditionalGeneration(config))


def t5() -> torch.nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        dropout_rate=0.0,
    )
    return initialised(transformers.T5ForConditionalGeneration(config))


def initialised(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
            elif parameter.dim() == 1 and (parameter == 0).all():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()
