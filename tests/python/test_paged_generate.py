"""generate() with keys and values in pages: the tokens and logits of transformers' own cache, no copies."""

from __future__ import annotations

import copy
import gc

import pytest
import tiny_transformers
import torch
from transformers import DynamicCache

import tileformer
from tileformer.integrations.paged_batch import PagedBatch
from tileformer.integrations.transformers import stop_paged_cache, use_paged_cache

pytestmark = pytest.mark.slow  # models: what differs between ISAs is tested without them
LENGTH, NEW = 19, 16
GREEDY = dict(max_new_tokens=NEW, do_sample=False, eos_token_id=None)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def models():
    """Models by name with tileformer's attention, made once."""
    made = {}

    def get(name: str) -> torch.nn.Module:
        if name not in made:
            made[name] = tiny_transformers.decoder(name)
        made[name].set_attn_implementation("tileformer")
        return made[name]

    return get


@pytest.fixture
def no_copies(monkeypatch):
    """Fails where keys are gathered into a dense copy."""
    monkeypatch.setattr(PagedBatch, "gather", lambda *_: pytest.fail("keys were gathered"))


def prompts(batch: int = 3, length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, tiny_transformers.VOCABULARY, (batch, length), generator=generator)


def padded(kind: str) -> dict[str, torch.Tensor]:
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    if kind == "left":
        mask[0, :5] = 0
        mask[1, : LENGTH - 1] = 0
    elif kind == "right":
        mask[0, -5:] = 0
    elif kind == "holes":
        mask[0, 4:7] = 0
        mask[1, :2] = 0
    return dict(input_ids=prompts(), attention_mask=mask)


def cache_of(model, max_tokens: int = 2048, page_size: int = 16, **options):
    return tileformer.PagedKVCache.for_model(model, max_tokens=max_tokens, page_size=page_size, **options)


def both(model, cache=None, **options):
    """generate() with DynamicCache and with pages: (expected, actual, the paged cache)."""
    cache = cache_of(model) if cache is None else cache
    options = dict(return_dict_in_generate=True, output_logits=True) | options
    torch.manual_seed(0)
    expected = model.generate(**options)
    torch.manual_seed(0)
    return expected, model.generate(**options, cache=cache), cache


def same(expected, actual, tolerance: float = 2e-4) -> None:
    assert torch.equal(actual.sequences, expected.sequences)
    for one, other in zip(actual.logits, expected.logits):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * max(1.0, other.abs().max().item()))


@pytest.mark.parametrize("kind", ["none", "left", "right", "holes"])
@pytest.mark.parametrize("name", tiny_transformers.DECODERS)
def test_greedy(models, no_copies, name, kind):
    expected, actual, cache = both(models(name), **padded(kind), **GREEDY)
    same(expected, actual)
    assert actual.cache is cache and cache.get_seq_length() == LENGTH + NEW - 1


def test_padding_takes_no_pages(models):
    _, _, cache = both(models("llama"), **padded("left"), **GREEDY)
    stored = [LENGTH - 5 + NEW - 1, 1 + NEW - 1, LENGTH + NEW - 1]
    assert [cache.pool.length(row) for row in cache.rows] == stored
    assert cache.pool.used_pages == sum(-(-tokens // 16) for tokens in stored)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_sampling_with_a_seed(models, no_copies, name):
    options = dict(max_new_tokens=NEW, do_sample=True, temperature=1.3, top_k=20, eos_token_id=None)
    expected, actual, _ = both(models(name), **padded("left"), **options)
    same(expected, actual)


def test_several_answers_to_one_prompt(models, no_copies):
    options = dict(max_new_tokens=NEW, do_sample=True, num_return_sequences=3, eos_token_id=None)
    expected, actual, _ = both(models("qwen3"), input_ids=prompts(2), **options)
    same(expected, actual)


@pytest.mark.parametrize("kind", ["none", "left"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
def test_beams(models, no_copies, name, kind):
    options = GREEDY | dict(num_beams=4, num_return_sequences=2, output_logits=False)
    expected, actual, cache = both(models(name), **padded(kind), **options)
    assert torch.equal(actual.sequences, expected.sequences)
    torch.testing.assert_close(actual.sequences_scores, expected.sequences_scores, rtol=1e-4, atol=1e-4)
    alone = sum(-(-cache.pool.length(row) // 16) for row in cache.rows)
    assert len(cache.rows) == 12 and cache.pool.used_pages < alone  # beams share the pages of their prompt


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_assisted(models, no_copies, name):
    assistant = tiny_transformers.decoder("qwen2")
    assistant.generation_config.num_assistant_tokens = 5
    options = GREEDY | dict(assistant_model=assistant, output_logits=False)
    expected, actual, cache = both(models(name), input_ids=prompts(1), **options)
    assert torch.equal(actual.sequences, expected.sequences)
    assert cache.pool.length(cache.rows[0]) == cache.get_seq_length()


def test_prompt_lookup(models, no_copies):
    repeated = prompts(1, 6).repeat(1, 4)
    options = GREEDY | dict(prompt_lookup_num_tokens=3, output_logits=False)
    expected, actual, _ = both(models("llama"), input_ids=repeated, **options)
    assert torch.equal(actual.sequences, expected.sequences)


@pytest.mark.parametrize("kind", ["none", "left"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_prompt_in_chunks(models, no_copies, name, kind):
    expected, actual, _ = both(models(name), **padded(kind), **GREEDY, prefill_chunk_size=4)
    same(expected, actual)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_half_precision(dtype, tolerance):
    model = tiny_transformers.decoder("llama").to(dtype)
    model.set_attn_implementation("tileformer")
    cache = cache_of(model)
    assert cache.pool.dtype is dtype
    inputs, dynamic = padded("left"), DynamicCache(config=model.config)
    valid = inputs["attention_mask"].bool()
    expected = model(**inputs, cache=dynamic).logits[valid].float()
    actual = model(**inputs, cache=cache).logits[valid].float()
    scale = expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)
    mask = torch.cat((inputs["attention_mask"], torch.ones(3, 1)), 1)
    step = dict(input_ids=prompts(3, 1), attention_mask=mask)
    expected, actual = (model(**step, cache=c).logits.float() for c in (dynamic, cache))
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_pages(models, dtype):
    model = models("llama")
    cache = cache_of(model, dtype=dtype)
    expected, actual, _ = both(model, cache, input_ids=prompts(), max_new_tokens=2, do_sample=False)
    scale = expected.logits[1].abs().max().item()
    torch.testing.assert_close(actual.logits[0], expected.logits[0])  # a prompt attends to itself, unrounded
    torch.testing.assert_close(actual.logits[1], expected.logits[1], rtol=0, atol=0.1 * scale)


def test_the_older_keyword(models):
    model = models("llama")
    expected = model.generate(prompts(), **GREEDY)
    with pytest.warns(FutureWarning):
        actual = model.generate(prompts(), **GREEDY, past_key_values=cache_of(model))
    assert torch.equal(actual, expected)


def test_the_pools_stay_where_they_are(models, no_copies):
    model, cache = models("llama"), cache_of(models("llama"))
    before = [(p.key.data_ptr(), p.value.data_ptr()) for p in map(cache.pool.layer, range(4))]
    model.generate(prompts(), **GREEDY, cache=cache)
    assert [(p.key.data_ptr(), p.value.data_ptr()) for p in map(cache.pool.layer, range(4))] == before


def test_a_step_allocates_nothing_of_the_size_of_the_cache(models, no_copies):
    model, cache = models("llama"), cache_of(models("llama"), max_tokens=8192)
    model.config.max_position_embeddings, length = 8192, 6000
    model(prompts(1, length), cache=cache, logits_to_keep=1)
    with torch.profiler.profile(profile_memory=True) as profile:
        model(prompts(1, 1), cache=cache)
    largest = max(abs(event.self_cpu_memory_usage) for event in profile.events())
    assert largest < length * 16 * 4 / 2  # half of one kv head's keys in one layer


def test_pages_are_freed_with_the_cache(models):
    cache = cache_of(models("llama"))
    pool = cache.pool
    models("llama").generate(prompts(), **GREEDY, cache=cache)
    assert pool.used_pages > 0
    del cache
    gc.collect()
    assert pool.used_pages == 0


def test_a_copy_shares_the_prompt(models, no_copies):
    model, ids = models("llama"), prompts(1, 40)
    prefix = cache_of(model)
    model(ids[:, :32], cache=prefix)
    expected = model.generate(ids, **GREEDY)
    answers = [copy.deepcopy(prefix) for _ in range(8)]
    for answer in answers:
        assert torch.equal(model.generate(ids, **GREEDY, cache=answer), expected)
    assert prefix.pool.used_pages == 2 + 8 * 2  # 32 tokens once, 8 + 15 more for each


def test_rows_are_repeated_and_chosen_in_place(models, no_copies):
    model, cache = models("llama"), cache_of(models("llama"))
    inputs = padded("left")
    model(**inputs, cache=cache)
    dynamic = DynamicCache(config=model.config)
    model(**inputs, cache=dynamic)
    used = cache.pool.used_pages
    for which in (cache, dynamic):
        which.batch_repeat_interleave(2)
        which.reorder_cache(torch.tensor([5, 0, 0, 3, 2, 1]))
        which.batch_select_indices(torch.tensor([4, 0, 2]))
    assert cache.pool.used_pages <= used
    mask = inputs["attention_mask"][[1, 2, 0]]
    step = dict(input_ids=prompts(3, 2), attention_mask=torch.cat((mask, torch.ones(3, 2)), 1))
    torch.testing.assert_close(model(**step, cache=cache).logits, model(**step, cache=dynamic).logits)
    cache.crop(-2)
    assert cache.get_seq_length() == LENGTH
    dynamic.crop(-2)
    torch.testing.assert_close(model(**step, cache=cache).logits, model(**step, cache=dynamic).logits)
    cache.reset()
    assert cache.pool.used_pages == 0 and cache.get_seq_length() == 0


def test_a_full_cache_says_what_to_raise(models):
    model, cache = models("llama"), cache_of(models("llama"), max_tokens=64)
    with pytest.raises(tileformer.CacheFull, match="max_tokens"):
        model.generate(prompts(), **GREEDY, cache=cache)
    cache.reset()
    assert torch.equal(
        model.generate(prompts(1), **GREEDY, cache=cache), model.generate(prompts(1), **GREEDY)
    )


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_another_attention_gets_dense_copies_and_a_warning(models, attention):
    model = models("llama")
    expected = model.generate(**padded("left"), **GREEDY)
    model.set_attn_implementation(attention)
    with pytest.warns(UserWarning, match="copies all keys"):
        actual = model.generate(**padded("left"), **GREEDY, cache=cache_of(model))
    assert torch.equal(actual, expected)


def test_the_switch(models, no_copies):
    model = models("llama")
    model.set_attn_implementation("sdpa")
    expected = model.generate(**padded("left"), **GREEDY)
    assert use_paged_cache(model, max_tokens=2048, page_size=16) is model
    answer = model.generate(**padded("left"), **GREEDY, return_dict_in_generate=True)
    assert torch.equal(answer.sequences, expected) and model.config._attn_implementation == "tileformer"
    pool = answer.cache.pool
    assert pool.used_pages > 0
    del answer
    gc.collect()
    assert pool.used_pages == 0
    beams = model.generate(prompts(), **GREEDY, num_beams=3, return_dict_in_generate=True)
    assert beams.cache.pool is pool
    own = DynamicCache(config=model.config)
    assert model.generate(prompts(), **GREEDY, return_dict_in_generate=True, cache=own).cache is own
    assert torch.equal(
        model.generate(prompts(), **GREEDY, use_cache=False), model.generate(prompts(), **GREEDY)
    )
    assert stop_paged_cache(model) is model
    assert model.config._attn_implementation == "sdpa" and "generate" not in vars(model)
    stop_paged_cache(model)
    later = model.generate(prompts(), **GREEDY, return_dict_in_generate=True)
    assert isinstance(later.cache, DynamicCache)


def test_a_model_that_drafts_for_itself(models, no_copies):
    model = tiny_transformers.decoder("llama")
    expected = model.generate(prompts(1), **GREEDY)
    use_paged_cache(model, max_tokens=2048, page_size=16)
    assert torch.equal(model.generate(prompts(1), **GREEDY, assistant_early_exit=2), expected)


def test_models_that_cannot_have_pages():
    with pytest.raises(ValueError, match="encoder-decoder"):
        cache_of(tiny_transformers.bart())
    model = tiny_transformers.decoder("llama")
    model.config.layer_types = ["full_attention", "linear_attention", "full_attention", "full_attention"]
    with pytest.raises(ValueError, match="linear_attention"):
        cache_of(model)
    with pytest.raises(ValueError, match="both given"):
        tileformer.PagedKVCache.for_model(tiny_transformers.decoder("llama"), max_tokens=64, num_pages=4)


def test_a_cache_of_another_model(models):
    with pytest.raises(ValueError, match=r"head_dim 16.*the cache has 4 layers, kv_heads 2, head_dim 24"):
        models("llama").generate(prompts(), **GREEDY, cache=cache_of(models("qwen3")))


@pytest.mark.parametrize("attention", ["tileformer", "sdpa"])
@pytest.mark.parametrize("layers", [3, 5])
@pytest.mark.filterwarnings("ignore:a paged cache copies")
def test_a_cache_of_a_model_with_other_layers(models, layers, attention):
    cache = cache_of(models("llama"))
    models("llama").set_attn_implementation(attention)
    other = tiny_transformers.decoder("llama", num_hidden_layers=layers)
    other.set_attn_implementation(attention)
    with pytest.raises(ValueError, match="another model"):
        other.generate(prompts(), **GREEDY, cache=cache)
    if attention == "tileformer":
        assert cache.pool.used_pages == 0
        with pytest.raises(ValueError, match=f"the model has {layers} layers, .*the cache has 4 layers"):
            other(prompts(), cache=cache)


def test_another_batch_needs_a_reset(models):
    model, cache = models("llama"), cache_of(models("llama"))
    model(prompts(3), cache=cache)
    with pytest.raises(ValueError, match="2 rows, but the cache holds 3"):
        model(prompts(2), cache=cache)


def interrupt(model, monkeypatch, place: str, ids: torch.Tensor, cache) -> None:
    """A forward that ends in an exception in layer 2, or where a layer writes its keys."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if place == "between":
            patch.setattr(model.model.layers[2], "forward", stop)
        elif place == "last":
            patch.setattr(model.model.layers[3].mlp, "forward", stop)
            patch.setattr(model.model.layers[3].self_attn, "forward", stop)
        else:
            patch.setattr(cache.pool, place, stop)
        model(ids, cache=cache)


@pytest.mark.parametrize("place", ["between", "last", "append", "extend", "attend"])
def test_a_forward_that_was_interrupted(models, no_copies, monkeypatch, place):
    model, cache, ids = models("llama"), cache_of(models("llama")), prompts()
    expected = model(ids).logits
    if place != "attend":  # the first forward reads no pages
        interrupt(model, monkeypatch, place, ids[:, :8], cache)
    model(ids[:2, :12], cache=cache)  # of another size: nothing of the first is left
    interrupt(model, monkeypatch, place, ids[:2, 12:], cache)
    assert cache.get_seq_length() == 12
    copied = copy.deepcopy(cache)
    for one in (cache, copied):
        torch.testing.assert_close(model(ids[:2, 12:], cache=one).logits, expected[:2, 12:])
    interrupt(model, monkeypatch, place, ids[:2, :1], cache)
    cache.crop(-4)
    assert [cache.pool.length(row) for row in cache.rows] == [LENGTH - 4] * 2
    torch.testing.assert_close(model(ids[:2, -4:], cache=cache).logits, expected[:2, -4:])


@pytest.mark.filterwarnings("ignore:a paged cache copies")
def test_an_interruption_with_dense_copies(models, monkeypatch):
    model, cache, ids = models("llama"), cache_of(models("llama")), prompts()
    model.set_attn_implementation("sdpa")
    interrupt(model, monkeypatch, "between", ids, cache)
    with pytest.raises(ValueError, match="after 2 layers, the cache has 4: it was interrupted"):
        model(ids, cache=cache)
    cache.reset()
    model(ids[:, :12], cache=cache)
    interrupt(model, monkeypatch, "between", ids[:, 12:], cache)
    torch.testing.assert_close(model(ids[:, 12:], cache=cache).logits, model(ids).logits[:, 12:])


def test_a_full_cache_goes_on_with_the_right_tokens(models, no_copies):
    model, cache, ids = models("llama"), cache_of(models("llama"), max_tokens=32), prompts(1)
    expected = model.generate(ids, **GREEDY)
    with pytest.raises(tileformer.CacheFull):
        model.generate(ids, **GREEDY, cache=cache)
    assert cache.get_seq_length() == 32
    cache.crop(-10)
    assert torch.equal(model.generate(expected[:, :23], max_new_tokens=4, cache=cache), expected[:, :27])
    with pytest.raises(tileformer.CacheFull):
        model(prompts(2, 40), cache=cache_of(models("llama"), max_tokens=64))


def test_attention_that_reads_no_pages_is_refused(models, monkeypatch):
    model, cache = tiny_transformers.decoder("llama"), cache_of(models("llama"))
    cache._config = models("llama").config
    for _ in range(2):
        with pytest.raises(RuntimeError, match="layer 0 was given only its new keys"):
            model(prompts(), cache=cache)


def test_training_through_pages_is_refused(models):
    with torch.enable_grad(), pytest.raises(RuntimeError, match="no_grad"):
        models("llama")(prompts(), cache=cache_of(models("llama")))


def test_the_default_size_is_a_share_of_the_memory(models):
    pool = tileformer.PagedKVCache.for_model(models("llama")).pool
    assert pool.num_pages > 1000 and pool.used_pages == 0


def test_a_cache_goes_on_after_it_was_full():
    model = tiny_transformers.decoder("llama")
    model.set_attn_implementation("tileformer")
    cache = tileformer.PagedKVCache.for_model(model, max_tokens=64)
    prompt = torch.arange(1, 9)[None]
    with pytest.raises(tileformer.CacheFull):
        model.generate(prompt, max_new_tokens=100, do_sample=False, cache=cache)
    cache.crop(-10)
    model.generate(torch.arange(1, 60)[None], max_new_tokens=2, do_sample=False, cache=cache)


def test_a_switched_model_can_be_copied_and_saved(tmp_path):
    model = use_paged_cache(tiny_transformers.decoder("llama"), max_tokens=256)
    prompt = torch.arange(1, 9)[None]
    expected = model.generate(prompt, max_new_tokens=4, do_sample=False)
    assert torch.equal(copy.deepcopy(model).generate(prompt, max_new_tokens=4, do_sample=False), expected)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(loaded.generate(prompt, max_new_tokens=4, do_sample=False), expected)
    use_paged_cache(loaded, max_tokens=256)
    assert torch.equal(loaded.generate(prompt, max_new_tokens=4, do_sample=False), expected)
    stop_paged_cache(loaded)
    with pytest.raises(TypeError, match="swap_out"):
        copy.deepcopy(tileformer.PagedKVCache(1, 1, 32, num_pages=1))
