"""The model of a run, in fp32, and its tokenizer: Llama or Mixtral of random weights, or one to continue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tileformer.models.conversion_cache import ConversionCache
from tileformer.models.experts import choose_experts
from tileformer.models.gguf import convert_gguf
from tileformer.models.loading import load_model, load_tokenizer
from tileformer.models.source import find_model
from tileformer.training.errors import TrainingError
from tileformer.training.settings import SMOLLM2, SMOLLM2_RANDOM, Settings

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_SMALLEST_CONTEXT = 2048  # of a new model: longer than its rows, so that it can be asked with long prompts
_SMOLLM2_CONTEXT = 8192


@dataclass(frozen=True)
class Trainee:
    model: PreTrainedModel  # fp32, in training mode
    tokenizer: PreTrainedTokenizerBase
    experts: str | None  # what computes its experts; None: it has none

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def make_trainee(settings: Settings) -> Trainee:
    """The model that `settings`, resolved, ask for. Raises ModelError or TrainingError."""
    import torch

    tokenizer = make_tokenizer(settings)
    if settings.is_new:
        tokenizer.chat_template = None  # the model will know text, not conversations
        model = _new_model(settings, tokenizer)
    else:
        model = load_model(_folder(settings), torch.float32, settings.attn).model
        _check_context(settings, model)
    experts = choose_experts(model, settings.experts, settings.attn)
    if settings.experts is not None and experts is None:
        raise TrainingError(f"--experts is for a model with experts; {settings.model!r} has none")
    model.config.use_cache = False
    if settings.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    return Trainee(model.train(), tokenizer, experts)


def make_tokenizer(settings: Settings) -> PreTrainedTokenizerBase:
    """The tokenizer of the model that `settings` ask for. Raises ModelError."""
    return load_tokenizer(_folder(settings))


def _folder(settings: Settings) -> Path:
    """The Hugging Face folder of the model to continue, or that lends its tokenizer to a new one."""
    name = settings.tokenizer if settings.is_new else settings.model
    source = find_model(None if name == SMOLLM2 else name)
    return ConversionCache(source.path).make(convert_gguf) if source.is_gguf else source.path


def _new_model(settings: Settings, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(settings.seed)
    return AutoModelForCausalLM.from_config(
        _configuration(settings, tokenizer), attn_implementation=settings.attn, dtype=torch.float32
    )


def _configuration(settings: Settings, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    from transformers import LlamaConfig, MixtralConfig

    small = settings.model != SMOLLM2_RANDOM
    context = _SMALLEST_CONTEXT if small else _SMOLLM2_CONTEXT
    kind, experts = LlamaConfig, {}
    if settings.num_experts is not None:
        kind = MixtralConfig
        experts = {"num_local_experts": settings.num_experts, "num_experts_per_tok": settings.top_k}
    return kind(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.intermediate,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        max_position_embeddings=max(context, settings.sequence_length),
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0 if small else 100_000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **experts,
    )


def _check_context(settings: Settings, model: PreTrainedModel) -> None:
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if context is not None and settings.sequence_length > context:
        raise TrainingError(
            f"--sequence-length is {settings.sequence_length}; the context of {settings.model!r} holds "
            f"{context}"
        )
