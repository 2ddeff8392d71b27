"""Continuous batching: the tokens of generate(), and keys that are attended to where they lie."""

from __future__ import annotations

import pytest
import tiny_transformers
import torch
from transformers.generation.continuous_batching.cache_allocators import FullAttentionCacheAllocator

from tileformer.integrations.batching_pages import BatchingPages
from tileformer.integrations.continuous_batching import ContinuousBatching, generate_batch

pytestmark = pytest.mark.slow  # models: what differs between ISAs is tested without them
LIMITS = [12, 20, 7, 9, 25, 5, 11]
GREEDY = dict(page_size=16, max_batch_tokens=32, do_sample=False, eos_token_id=-1)


@pytest.fixture(scope="module")
def models():
    """Models by name, made once."""
    made = {}

    def get(name: str) -> torch.nn.Module:
        if name not in made:
            made[name] = tiny_transformers.decoder(name)
            made[name].set_attn_implementation("tileformer")
        return made[name]

    return get


def prompts() -> list[list[int]]:
    """Of mixed length, some longer than a step's tokens; the last begins as the second does."""
    generator = torch.Generator().manual_seed(1)
    made = [
        torch.randint(3, tiny_transformers.VOCABULARY, (length,), generator=generator).tolist()
        for length in (5, 40, 17, 33, 1, 64)
    ]
    return [*made, [*made[1][:35], 7, 8, 9]]


def alone(model, prompt: list[int], limit: int, **options) -> list[int]:
    options = dict(do_sample=False, eos_token_id=None) | options
    with torch.no_grad():
        return model.generate(torch.tensor([prompt]), max_new_tokens=limit, **options)[
            0, len(prompt) :
        ].tolist()


def expected(model) -> list[list[int]]:
    return [alone(model, prompt, limit) for prompt, limit in zip(prompts(), LIMITS)]


@pytest.mark.parametrize("name", tiny_transformers.DECODERS)
def test_tokens_equal_those_of_generate(models, name):
    model = models(name)
    answers = generate_batch(model, prompts(), max_new_tokens=LIMITS, **GREEDY)
    assert [answer.tokens for answer in answers] == expected(model)
    assert [answer.prompt for answer in answers] == prompts()
    for answer in answers:
        assert answer.error is None and len(answer.times) == len(answer.tokens)
        assert answer.times == sorted(answer.times) and answer.first_token_seconds > 0
    assert model.config._attn_implementation == "tileformer"


def test_nothing_is_copied(models, monkeypatch):
    for name in ("update", "get_read_indices"):
        monkeypatch.setattr(FullAttentionCacheAllocator, name, lambda *_: pytest.fail("keys were copied"))
    made, steps = [], {"decode": 0, "mixed": 0, "prompts": 0}
    step_of = BatchingPages._step_of

    def spy(self, kwargs):
        step = step_of(self, kwargs)
        made.append(step)
        decode = kwargs.get("block_table") is not None
        steps["decode" if decode else "prompts" if step.block_table is None else "mixed"] += 1
        return step

    monkeypatch.setattr(BatchingPages, "_step_of", spy)
    answers = generate_batch(models("llama"), prompts(), max_new_tokens=LIMITS, **GREEDY)
    assert [answer.tokens for answer in answers] == expected(models("llama"))
    assert all(count > 0 for count in steps.values()), steps
    assert len(made) == sum(steps.values()) < 60  # once for all layers of a step


def test_a_common_beginning_is_kept_once(models):
    model, common = models("llama"), prompts()[5]
    with torch.no_grad(), ContinuousBatching(model, max_tokens=1024, **GREEDY) as server:
        first = server.submit([*common, 5], max_new_tokens=2)
        list(server.stream())
        requests = [server.submit([*common, 6 + i], max_new_tokens=8) for i in range(4)]
        list(server.stream())
        peak = server.pages.peak_pages
        assert server.pages.num_pages == 64 and server.pages.used_pages == 0
    assert peak == 4 + 4  # 64 tokens of the prompt together, 9 more for each
    assert len(server.answer(first).tokens) == 2
    for i, request in enumerate(requests):
        assert server.answer(request).tokens == alone(model, [*common, 6 + i], 8)


def test_requests_that_come_later(models):
    model, seen, all_prompts = models("qwen3"), {}, prompts()
    with torch.no_grad(), ContinuousBatching(model, max_tokens=1024, **GREEDY) as server:
        order = [server.submit(all_prompts[0], max_new_tokens=LIMITS[0])]
        for request, tokens, finished in server.stream():
            seen.setdefault(request, []).extend(tokens)
            if len(order) < len(all_prompts) and (finished or len(seen[request]) == 3):
                order.append(server.submit(all_prompts[len(order)], max_new_tokens=LIMITS[len(order)]))
    assert [seen[request] for request in order] == expected(model)[: len(order)] and len(order) > 3


def test_a_full_cache_makes_requests_wait(models):
    answers = generate_batch(models("llama"), prompts(), max_new_tokens=LIMITS, max_tokens=128, **GREEDY)
    assert [answer.tokens for answer in answers] == expected(models("llama"))


def test_a_stop_token_ends_an_answer(models):
    model, prompt = models("llama"), prompts()[1]
    free = alone(model, prompt, 20)
    stop = free[9]
    (answer,) = generate_batch(
        model, [prompt], max_new_tokens=20, page_size=16, do_sample=False, eos_token_id=stop
    )
    assert answer.tokens == free[: free.index(stop) + 1]


def test_sampling_differs_by_seed_only(models):
    options = dict(GREEDY, do_sample=True, temperature=2.0)
    draws = [
        [
            a.tokens
            for a in generate_batch(models("llama"), prompts()[:2], max_new_tokens=12, seed=seed, **options)
        ]
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_bfloat16(models):
    model = tiny_transformers.decoder("llama").to(torch.bfloat16)
    answers = generate_batch(model, prompts(), max_new_tokens=LIMITS, **GREEDY)
    assert [len(answer.tokens) for answer in answers] == LIMITS
    assert model.config._attn_implementation == "sdpa"


def test_tokens_are_handed_out_as_they_come(models):
    seen = [[] for _ in LIMITS]
    answers = generate_batch(
        models("llama"), prompts(), max_new_tokens=LIMITS, on_tokens=lambda i, t: seen[i].extend(t), **GREEDY
    )
    assert seen == [answer.tokens for answer in answers]


def test_a_request_that_is_cancelled(models):
    model = models("llama")
    with torch.no_grad(), ContinuousBatching(model, max_tokens=1024, **GREEDY) as server:
        long = server.submit(prompts()[0], max_new_tokens=200)
        short = server.submit(prompts()[1], max_new_tokens=20)
        for request, _, _ in server.stream():
            if request == long and len(server.answer(long).tokens) >= 3:
                server.cancel(long)
    assert server.answer(short).tokens == alone(model, prompts()[1], 20)
    assert len(server.answer(long).tokens) < 200
    with torch.no_grad(), server:  # once more
        again = server.submit(prompts()[2], max_new_tokens=7)
        list(server.stream())
    assert server.answer(again).tokens == alone(model, prompts()[2], 7)


def test_windows_count_their_pages(models):
    with torch.no_grad(), ContinuousBatching(models("mistral"), max_tokens=1024, **GREEDY) as server:
        server.submit(prompts()[1], max_new_tokens=3)
        list(server.stream())
        assert server.pages.num_pages > 0 and server.pages.peak_pages == 1  # a window of 6


def test_an_error_in_between_puts_everything_back(models):
    model = models("llama")
    with pytest.raises(KeyboardInterrupt), ContinuousBatching(model, max_tokens=1024, **GREEDY) as server:
        server.submit(prompts()[0], max_new_tokens=100)
        raise KeyboardInterrupt
    assert model.config._attn_implementation == "tileformer"
    with pytest.raises(RuntimeError, match="with ContinuousBatching"):
        server.submit(prompts()[0], max_new_tokens=1)


def test_a_model_that_fails_says_so(models, monkeypatch):
    model = models("qwen2")
    monkeypatch.setattr(model.model.layers[1], "forward", lambda *_, **__: 1 / 0)
    with pytest.raises(RuntimeError, match="division by zero"):
        generate_batch(model, prompts(), max_new_tokens=4, **GREEDY)
    assert model.config._attn_implementation == "tileformer"


def test_bad_requests(models):
    model = models("llama")
    with pytest.raises(ValueError, match="multiples of 16"):
        ContinuousBatching(model, page_size=20)
    with pytest.raises(ValueError, match="encoder-decoder"):
        ContinuousBatching(tiny_transformers.bart())
    with pytest.raises(ValueError, match="2 numbers for 7 prompts"):
        generate_batch(model, prompts(), max_new_tokens=[1, 2])
    with ContinuousBatching(model, max_tokens=64, **GREEDY) as server:
        with pytest.raises(ValueError, match="at least one of each"):
            server.submit([], max_new_tokens=1)
        with pytest.raises(ValueError, match="64 fit into the cache, see max_tokens"):
            server.submit([5] * 60, max_new_tokens=5)
    fits = pytest.raises(ValueError, match="256 fit into the model's context")
    with ContinuousBatching(model, max_tokens=1024, **GREEDY) as server, fits:
        server.submit([5] * 250, max_new_tokens=10)
