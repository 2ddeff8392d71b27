"""Generates token by token with a Hugging Face model, and times prefill and every decode step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from tileformer.models.errors import ModelError
from tileformer.models.sampling import GREEDY, Sampler, Sampling

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class Generation:
    """What a model made of a prompt. Prefill gives the first token, each decode step a further one."""

    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)  # without the stop token
    prefill_seconds: float = 0.0
    decode_seconds: list[float] = field(default_factory=list)
    interrupted: bool = False

    @property
    def prefill_speed(self) -> float:
        """Prompt tokens per second; 0 if the prefill did not finish."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_speed(self) -> float:
        """Decode steps per second; 0 if there was none."""
        return len(self.decode_seconds) / sum(self.decode_seconds) if self.decode_seconds else 0.0


def generate(
    model: PreTrainedModel,
    prompt: list[int],
    *,
    max_new_tokens: int,
    stop_tokens: Iterable[int] = (),
    sampling: Sampling = GREEDY,
    on_token: Callable[[int], None] = lambda token: None,
    cache: Cache | None = None,
) -> Generation:
    """Continues ``prompt`` until a stop token, ``max_new_tokens`` or the end of the model's context.

    A plain loop over forward() with an empty ``cache``, by default one of the model's own kind. The timings
    hold the forward pass and the choice of the token, but not ``on_token``. Ctrl-C ends it early with what
    there is. Raises ModelError for a prompt that is empty or longer than the context.
    """
    import torch

    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not prompt:
        raise ModelError("the prompt is empty: no tokens to continue")
    if context is not None and len(prompt) >= context:
        raise ModelError(f"the prompt has {len(prompt)} tokens, the model's context holds {context}")
    if context is not None:
        max_new_tokens = min(max_new_tokens, context - len(prompt))

    stop, sample, result = frozenset(stop_tokens), Sampler(sampling), Generation(prompt_tokens=len(prompt))
    forward = _forward(model)
    try:
        with torch.inference_mode():
            inputs = torch.tensor([prompt])
            while True:
                start = perf_counter()
                logits, cache = forward(inputs, cache)
                token = sample(logits[0, -1])
                elapsed = perf_counter() - start
                if result.prefill_seconds:
                    result.decode_seconds.append(elapsed)
                else:
                    result.prefill_seconds = elapsed
                if token in stop:
                    break
                result.tokens.append(token)
                on_token(token)
                if len(result.tokens) >= max_new_tokens:
                    break
                inputs = torch.tensor([[token]])
    except KeyboardInterrupt:
        result.interrupted = True
    return result


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str, system: str | None = None) -> list[int]:
    """Token ids of a one-turn conversation in the model's chat template; of the bare text if it has none."""
    if tokenizer.chat_template is None:
        return tokenizer.encode(f"{system}\n\n{prompt}" if system else prompt)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(text, add_special_tokens=False)  # the template wrote them


def stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end an answer, by the generation configuration and the tokenizer."""
    configured = model.generation_config.eos_token_id
    tokens = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in [*tokens, tokenizer.eos_token_id] if token is not None)


def _forward(model: PreTrainedModel) -> Callable:
    """Returns (tokens [1, seq], cache or None) -> (logits [1, 1 or seq, vocabulary], cache)."""
    parameters = inspect.signature(model.forward).parameters
    cache_name = "cache" if "cache" in parameters else "past_key_values"
    options = {"use_cache": True}
    if "logits_to_keep" in parameters:
        options["logits_to_keep"] = 1

    def forward(tokens, cache):
        output = model(input_ids=tokens, **{cache_name: cache}, **options)
        return output.logits, output[cache_name]

    return forward


def warm_up(model: PreTrainedModel) -> None:
    """Runs a short prefill, so that the first timed one does not pay for what happens once per process.

    That is reading the mapped weights in and setting up the matrix library and the thread pool.
    """
    generate(model, [0] * 16, max_new_tokens=1)
