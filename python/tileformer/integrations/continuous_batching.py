"""Continuous batching: many requests of different length through one model, by transformers' own scheduler.

    from tileformer.integrations.continuous_batching import ContinuousBatching, generate_batch

    answers = generate_batch(model, prompts, max_new_tokens=64)  # lists of token ids in, in that order out

    with ContinuousBatching(model, max_tokens=100_000) as server:
        request = server.submit(prompt, max_new_tokens=64)
        for request, tokens, finished in server.stream():  # until all that was submitted has its answer
            ...

A request joins the batch of the next step and leaves it with its last token; nothing is padded. Prompts with
a common beginning share its pages. transformers schedules, samples and keeps the page table; attention reads
the pages where they lie (batching_pages.py says what of transformers is replaced for that).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from tileformer.integrations.batching_pages import BatchingPages
from tileformer.integrations.model_sizes import text_config, why_not_paged
from tileformer.integrations.transformers import attention_forward
from tileformer.kv_cache import DEFAULT_PAGE_SIZE

# transformers takes only names with "flash" in them for attention that needs no dense mask over all requests.
_NAME = "tileformer_flash"
AttentionInterface.register(_NAME, attention_forward)

_POLL_SECONDS = 0.1
_DEFAULT_TOKENS = 32768


@dataclass
class Answer:
    """What became of a request. Times are in seconds since it was submitted."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)  # with the stop token, as generate() returns it
    times: list[float] = field(default_factory=list)  # when each token was there
    error: str | None = None

    @property
    def first_token_seconds(self) -> float:
        return self.times[0] if self.times else float("nan")

    @property
    def seconds_per_token(self) -> list[float]:
        """Between a token and the next."""
        return [b - a for a, b in zip(self.times, self.times[1:])]


class ContinuousBatching:
    """A model that serves requests while it is entered (`with`). Until then and afterwards it is as it was;
    in between it must not be used for anything else.

    Args:
        model: a causal language model on the CPU.
        max_tokens: what the cache holds, of all running requests together. Further requests wait.
        page_size: tokens of a page, a multiple of 16.
        max_batch_tokens: tokens of a step; longer prompts are cut into chunks that run beside decode steps.
        max_requests: requests of a step.
        prefix_sharing: keep the pages of finished requests for prompts that begin alike.
        generation_config: default the model's. do_sample, temperature, top_k, top_p, eos_token_id and so on
            can also be given by name.
        seed: of sampling.

    Raises ValueError for a model that transformers' continuous batching does not know.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_tokens: int = _DEFAULT_TOKENS,
        page_size: int = DEFAULT_PAGE_SIZE,
        max_batch_tokens: int = 512,
        max_requests: int = 256,
        prefix_sharing: bool = True,
        generation_config: GenerationConfig | None = None,
        seed: int | None = None,
        **generation_options,
    ) -> None:
        if (reason := why_not_paged(model)) is not None:
            raise ValueError(f"model: got {type(model).__name__}, which cannot be batched: {reason}")
        if page_size < 16 or page_size % 16:
            raise ValueError(f"page_size is {page_size}; allowed are multiples of 16")
        if max_tokens < page_size:
            raise ValueError(
                f"max_tokens is {max_tokens}; allowed are whole numbers from page_size, {page_size}"
            )
        self.model = model
        self.pages: BatchingPages | None = None  # as soon as it is entered
        self._num_pages = -(-max_tokens // page_size)
        self._page_size = page_size
        self._config = ContinuousBatchingConfig(
            page_size=page_size,
            num_blocks=self._num_pages,
            max_batch_tokens=max_batch_tokens,
            max_requests_per_batch=max_requests,
            allow_block_sharing=prefix_sharing,
            seed=seed,
        )
        self._generation = copy.deepcopy(generation_config or model.generation_config)
        self._generation.update(**generation_options)
        if self._generation.eos_token_id is None:
            self._generation.eos_token_id = -1  # transformers' word for none
        self._manager = None
        self._answers: dict[str, Answer] = {}
        self._created: dict[str, float] = {}
        self._running: set[str] = set()

    def __enter__(self) -> ContinuousBatching:
        config = self.model.config
        if getattr(self.model, "_cached_continuous_batching_manager", None) is not None:
            raise RuntimeError(
                "the model keeps a manager of its own (persistent_manager=True); "
                "model.destroy_cached_continuous_batching_manager() lets go of it"
            )
        self._attention = config._attn_implementation
        # The setter, not set_attn_implementation(), which would look for the package of that name.
        config._attn_implementation = _NAME
        try:
            manager = self.model.init_continuous_batching(
                generation_config=self._generation, continuous_batching_config=self._config
            )
            # Block tables for decode steps are switched off where there is no GPU, by this number being 0.
            if all(a.supports_block_table for a in self._allocator_types()):
                manager.continuous_batching_config.max_blocks_per_request = self._num_pages
            make, made = manager._create_batch_processor, threading.Event()

            def make_with_pages():
                processor = make()
                self.pages = BatchingPages(processor.cache)
                made.set()
                return processor

            manager._create_batch_processor = make_with_pages
            manager.start()
            while not made.wait(_POLL_SECONDS) and manager.is_running():
                pass  # its thread makes the cache, or dies of it: submit() says so then
        except BaseException:
            config._attn_implementation = self._attention
            raise
        self._manager = manager
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            self._manager.stop(block=True, hard_stop=kind is not None or bool(self._running))
            self._manager.destroy()
        finally:
            self._manager = None
            self._running.clear()
            self.model.config._attn_implementation = self._attention

    def submit(self, prompt: Sequence[int], *, max_new_tokens: int, eos_token_id: int | None = None) -> str:
        """Adds a request; returns its name. eos_token_id: default the generation config's, -1 for none.

        Raises ValueError for a prompt that is empty, or does not fit with its answer into the cache or the
        model's context.
        """
        if self._manager is None:
            raise RuntimeError(
                "requests can be submitted inside of `with ContinuousBatching(model) as server:`"
            )
        prompt, room = list(prompt), self._num_pages * self._page_size
        context = getattr(text_config(self.model), "max_position_embeddings", None)
        if not prompt or max_new_tokens < 1:
            raise ValueError(
                f"{len(prompt)} prompt and {max_new_tokens} new tokens; at least one of each is needed"
            )
        for limit, what in ((room, "cache, see max_tokens"), (context, "model's context")):
            if limit is not None and len(prompt) + max_new_tokens > limit:
                raise ValueError(
                    f"{len(prompt)} prompt and {max_new_tokens} new tokens; {limit} fit into the {what}"
                )
        created = perf_counter()
        request = self._manager.add_request(
            prompt,
            max_new_tokens=max_new_tokens,
            eos_token_id=eos_token_id,
            streaming=True,
            record_timestamps=True,
        )
        if request is None:
            self._raise_if_dead()
            raise RuntimeError("the server is stopping and takes no more requests")
        self._answers[request], self._created[request] = Answer(prompt), created
        self._running.add(request)
        return request

    def cancel(self, request: str) -> None:
        """Ends a request with the tokens that it has."""
        self._manager.cancel_request(request)
        self._running.discard(request)

    def answer(self, request: str) -> Answer:
        """What has come of a request so far."""
        return self._answers[request]

    def stream(self) -> Iterator[tuple[str, list[int], bool]]:
        """(request, its new tokens, whether it is finished) as they come, until no request is running.

        More may be submitted meanwhile. Raises RuntimeError if the serving thread died.
        """
        while self._running:
            output = self._manager.get_result(timeout=_POLL_SECONDS)
            if output is None:
                self._raise_if_dead()
                continue
            answer = self._answers.get(output.request_id)
            if answer is None or output.request_id not in self._running:
                continue
            new = output.generated_tokens[len(answer.tokens) :]
            answer.tokens.extend(new)
            created = self._created[output.request_id]
            # A request that was evicted and begun again keeps its tokens, but not when they came.
            times = [stamp - created for stamp in output.timestamps or ()][-len(new) :] if new else []
            answer.times.extend(times)
            finished = output.is_finished()
            if finished:
                answer.error = output.error
                self._running.discard(output.request_id)
            if new or finished:
                yield output.request_id, new, finished

    def _raise_if_dead(self) -> None:
        error = self._manager.background_thread_status.fatal_error
        if error is not None:
            raise RuntimeError(f"continuous batching stopped: {error}") from error
        if not self._manager.is_running():
            raise RuntimeError("continuous batching stopped before all requests were served")

    def _allocator_types(self) -> list[type]:
        from transformers.generation.continuous_batching.cache import (
            ATTN_TYPE_TO_ALLOCATOR,
            group_layers_by_attn_type,
        )

        return [ATTN_TYPE_TO_ALLOCATOR[name] for name in group_layers_by_attn_type(text_config(self.model))]


def generate_batch(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int | Sequence[int],
    on_tokens: Callable[[int, list[int]], None] | None = None,
    **options,
) -> list[Answer]:
    """Answers prompts (token ids) by continuous batching; the model is afterwards as it was.

    max_new_tokens: one number, or one for each prompt. on_tokens(i, tokens): called with the new tokens of
    prompt i as they come. options: those of ContinuousBatching. Returns the answers in the order of prompts.
    Raises RuntimeError where the model failed.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if len(limits) != len(prompts):
        raise ValueError(f"max_new_tokens has {len(limits)} numbers for {len(prompts)} prompts")
    if "max_tokens" not in options:
        needed = sum(len(prompt) + limit for prompt, limit in zip(prompts, limits))
        page = options.get("page_size", DEFAULT_PAGE_SIZE)
        # Room for a part of the last page of each, and the share that transformers keeps free.
        options["max_tokens"] = max(
            page, min(_DEFAULT_TOKENS, int(1.25 * needed) + page * (len(prompts) + 1))
        )
    with torch.no_grad(), ContinuousBatching(model, **options) as server:
        requests = {server.submit(p, max_new_tokens=n): i for i, (p, n) in enumerate(zip(prompts, limits))}
        for request, tokens, _ in server.stream():
            if on_tokens is not None and tokens:
                on_tokens(requests[request], tokens)
        answers = [server.answer(request) for request in requests]
    for i, answer in enumerate(answers):
        if answer.error is not None:
            raise RuntimeError(f"prompt {i} was not answered: {answer.error}")
    return answers
