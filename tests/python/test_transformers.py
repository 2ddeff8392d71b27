"""attn_implementation="tileformer": the results of transformers' eager attention, without a dense mask."""

from __future__ import annotations

import pytest
import tiny_transformers
import torch
from transformers import DynamicCache, StaticCache
from transformers.modeling_utils import AttentionInterface

import tileformer

pytestmark = pytest.mark.slow  # models: what differs between ISAs is tested without them
LENGTH = 17


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def models():
    """Models by name, made once."""
    made = {}

    def get(name: str) -> torch.nn.Module:
        if name not in made:
            made[name] = tiny_transformers.decoder(name)
        return made[name]

    return get


@pytest.fixture
def masks(monkeypatch):
    """Collects the mask that every attention layer is handed."""
    mapping = AttentionInterface._global_mapping
    original, seen = mapping["tileformer"], []

    def spy(module, query, key, value, attention_mask, **kwargs):
        seen.append(attention_mask)
        return original(module, query, key, value, attention_mask, **kwargs)

    monkeypatch.setitem(mapping, "tileformer", spy)
    return seen


def dense(masks: list[torch.Tensor | None]) -> list[torch.Tensor]:
    """Those that hold a value per query and key, not the few numbers of a descriptor."""
    return [m for m in masks if m is not None and m.dtype != torch.int32]


def tokens(batch: int = 3, length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, tiny_transformers.VOCABULARY, (batch, length), generator=generator)


def padding(kind: str) -> torch.Tensor:
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    if kind == "left":
        mask[0, :5] = 0
        mask[1, :9] = 0
    elif kind == "right":
        mask[0, -5:] = 0
        mask[1, -9:] = 0
    elif kind == "both_ends":
        mask[0, :3] = 0
        mask[0, -4:] = 0
    elif kind == "holes":
        mask[0, 4:6] = 0
        mask[2, 1] = 0
    return mask


def logits(model, implementation: str, **inputs) -> torch.Tensor:
    model.set_attn_implementation(implementation)
    output = model(**inputs)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-4 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("kind", ["none", "left", "right", "both_ends"])
@pytest.mark.parametrize("name", tiny_transformers.DECODERS)
def test_logits_of_a_batch(models, masks, name, kind):
    mask = padding(kind)
    inputs = dict(input_ids=tokens(), attention_mask=mask, use_cache=False)
    expected = logits(models(name), "eager", **inputs)
    actual = logits(models(name), "tileformer", **inputs)
    valid = mask.bool()
    same(actual[valid], expected[valid])
    assert masks and not dense(masks)
    if kind == "none" and name == "llama":
        assert all(m is None for m in masks)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
def test_holes_in_the_padding_are_honoured(models, masks, name):
    mask = padding("holes")
    inputs = dict(input_ids=tokens(), attention_mask=mask, use_cache=False)
    expected = logits(models(name), "eager", **inputs)
    same(logits(models(name), "tileformer", **inputs)[mask.bool()], expected[mask.bool()])
    assert all(m.dtype == torch.bool for m in dense(masks))


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_packed_position_ids(models, masks, name):
    position_ids = torch.cat((torch.arange(6), torch.arange(8), torch.arange(3)))[None]
    inputs = dict(input_ids=tokens(1), position_ids=position_ids, use_cache=False)
    expected = logits(models(name), "eager", **inputs)
    same(logits(models(name), "tileformer", **inputs), expected)
    parts = [
        logits(models(name), "tileformer", input_ids=p, use_cache=False)
        for p in inputs["input_ids"].split([6, 8, 3], 1)
    ]
    same(torch.cat(parts, 1), expected)
    assert not dense(masks)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_packed_rows_of_a_batch(models, masks, name):
    rows = [(6, 8, 3), (17,), (1, 1, 15)]
    position_ids = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in rows])
    inputs = dict(input_ids=tokens(3), position_ids=position_ids, use_cache=False)
    expected = logits(models(name), "eager", **inputs)
    actual = logits(models(name), "tileformer", **inputs)
    same(actual, expected)
    assert masks and not dense(masks)
    ends = torch.tensor([0, 6, 14, 17, 34, 35, 36, 51])
    lengths = dict(cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=17, max_length_k=17)
    assert torch.equal(logits(models(name), "tileformer", **inputs, **lengths), actual)


def test_cu_seqlens_take_the_place_of_a_mask(models, masks):
    """What continuous batching and padding-free training pass."""
    lengths = torch.tensor([0, 6, 14, 17], dtype=torch.int32)
    ids = tokens(1)
    position_ids = torch.cat([torch.arange(int(n)) for n in lengths.diff()])[None]
    expected = logits(models("llama"), "eager", input_ids=ids, position_ids=position_ids, use_cache=False)
    query, key, value = torch.randn(1, 4, 17, 16), torch.randn(1, 2, 17, 16), torch.randn(1, 2, 17, 16)
    layer = models("llama").model.layers[0].self_attn
    forward = AttentionInterface._global_mapping["tileformer"]
    out, weights = forward(layer, query, key, value, None, cu_seq_lens_q=lengths, cu_seq_lens_k=lengths)
    assert weights is None
    for begin, end in zip(lengths[:-1].tolist(), lengths[1:].tolist()):
        part = slice(begin, end)
        alone = tileformer.flash_attention(query[:, :, part], key[:, :, part], value[:, :, part], causal=True)
        assert torch.equal(out[:, part], alone.transpose(1, 2))
    assert expected.shape[1] == 17


@pytest.mark.parametrize("kind", ["none", "left"])
@pytest.mark.parametrize("name", tiny_transformers.DECODERS)
def test_generate(models, masks, name, kind):
    model = models(name)
    options = dict(max_new_tokens=14, do_sample=False, eos_token_id=None)
    inputs = dict(input_ids=tokens(), attention_mask=padding(kind))
    model.set_attn_implementation("eager")
    expected = model.generate(**inputs, **options)
    model.set_attn_implementation("tileformer")
    assert torch.equal(model.generate(**inputs, **options), expected)
    assert torch.equal(model.generate(**inputs, **options, cache_implementation="static"), expected)
    assert masks and not dense(masks)


def test_beams_and_prompt_lookup(models):
    model = models("llama")
    inputs = dict(input_ids=tokens(2), attention_mask=padding("left")[:2])
    results = []
    for implementation in ("eager", "tileformer"):
        model.set_attn_implementation(implementation)
        beams = model.generate(**inputs, max_new_tokens=8, num_beams=3, do_sample=False, eos_token_id=None)
        repeated = tokens(1, 6).repeat(1, 3)
        looked_up = model.generate(
            repeated, max_new_tokens=12, prompt_lookup_num_tokens=3, do_sample=False, eos_token_id=None
        )
        results.append((beams, looked_up))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_chunks_on_a_filled_cache(models, masks, name, static):
    model, ids = models(name), tokens(2)
    expected = logits(model, "eager", input_ids=ids, use_cache=False)
    model.set_attn_implementation("tileformer")
    cache = (
        StaticCache(config=model.config, max_cache_len=32) if static else DynamicCache(config=model.config)
    )
    parts = [model(chunk, cache=cache).logits for chunk in ids.split([7, 5, 1, 4], 1)]
    same(torch.cat(parts, 1), expected)
    assert not dense(masks)


@pytest.mark.parametrize("encoder", [tiny_transformers.bert, tiny_transformers.modernbert])
@pytest.mark.parametrize("kind", ["none", "left", "right", "holes"])
def test_encoder(masks, kind, encoder):
    model, mask = encoder(), padding(kind)
    inputs = dict(input_ids=tokens(), attention_mask=mask)
    expected = logits(model, "eager", **inputs)
    actual = logits(model, "tileformer", **inputs)
    same(actual[mask.bool()], expected[mask.bool()])
    assert masks and (kind == "holes" or not dense(masks))


@pytest.mark.parametrize("kind", ["none", "left", "right"])
def test_cross_attention(masks, kind):
    model, mask = tiny_transformers.bart(), padding(kind)
    inputs = dict(input_ids=tokens(), attention_mask=mask, decoder_input_ids=tokens(3, 7))
    expected = logits(model, "eager", **inputs)
    same(logits(model, "tileformer", **inputs), expected)
    assert masks and not dense(masks)
    options = dict(input_ids=tokens(), attention_mask=mask, max_new_tokens=8, do_sample=False, num_beams=1)
    generated = model.generate(**options)
    model.set_attn_implementation("eager")
    assert torch.equal(generated, model.generate(**options))


@pytest.mark.parametrize("kind", ["none", "right", "holes"])
def test_position_bias(kind):
    model, mask = tiny_transformers.t5(), padding(kind)
    inputs = dict(input_ids=tokens(), attention_mask=mask, decoder_input_ids=tokens(3, 7))
    expected = logits(model, "eager", **inputs)
    same(logits(model, "tileformer", **inputs), expected)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_compiled_model(models, name):
    model = models(name)
    inputs = dict(input_ids=tokens(), use_cache=False)
    expected = logits(model, "eager", **inputs)
    model.set_attn_implementation("tileformer")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    same(compiled(**inputs).logits, expected)
    padded = dict(inputs, attention_mask=padding("left"))
    valid = padded["attention_mask"].bool()
    same(compiled(**padded).logits[valid], logits(model, "eager", **padded)[valid])


def test_bfloat16(models):
    model = tiny_transformers.decoder("llama").bfloat16()
    inputs = dict(input_ids=tokens(), attention_mask=padding("left"), use_cache=False)
    valid = inputs["attention_mask"].bool()
    expected = logits(tiny_transformers.decoder("llama"), "eager", **inputs)[valid]
    actual = logits(model, "tileformer", **inputs)[valid]
    eager = logits(model, "eager", **inputs)[valid]
    assert (actual - expected).abs().mean() < 1.5 * (eager - expected).abs().mean()


def test_a_model_can_be_explained(models):
    model = models("gemma2")
    model.set_attn_implementation("tileformer")
    text = tileformer.explain(model, tokens(), use_cache=False)
    assert "[4] tileformer::attention_inference" in text and "[5]" not in text


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_gradients_are_those_of_eager(models, name):
    model = models(name)
    inputs = dict(input_ids=tokens(), attention_mask=padding("right"), use_cache=False)

    def gradients(implementation):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        with torch.enable_grad():
            labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
            model(**inputs, labels=labels).loss.backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected, actual = gradients("eager"), gradients("tileformer")
    assert expected.keys() == actual.keys()
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)


def test_gradient_checkpointing_of_a_model(models):
    model = models("llama")
    model.set_attn_implementation("tileformer")

    def gradient():
        model.zero_grad()
        with torch.enable_grad():
            model(tokens(), labels=tokens(), use_cache=False).loss.backward()
        return model.model.layers[0].self_attn.q_proj.weight.grad.clone()

    model.train()
    expected = gradient()
    model.gradient_checkpointing_enable()
    try:
        actual = gradient()
    finally:
        model.gradient_checkpointing_disable()
        model.eval()
    assert torch.equal(actual, expected)
