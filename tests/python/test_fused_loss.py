"""fuse_linear_cross_entropy: the loss and gradients of the unfused model, without logits."""

from __future__ import annotations

import copy
import inspect

import pytest
import tiny_transformers
import torch
import transformers

from tileformer.integrations.transformers import fuse_linear_cross_entropy, unfuse_linear_cross_entropy

pytestmark = pytest.mark.slow  # models: what differs between ISAs is tested without them


def decoder(name="llama", **config) -> torch.nn.Module:
    model = tiny_transformers.decoder(name)
    if config:
        model = type(model)(transformers.AutoConfig.for_model(**{**model.config.to_dict(), **config}))
    return model.train()


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, tiny_transformers.VOCABULARY, (3, 17), generator=generator)
    labels = ids.clone()
    labels[0, :6] = -100
    return {"input_ids": ids, "labels": labels}


def step(model, **inputs):
    """Loss and gradients by name."""
    model.zero_grad()
    loss = model(**{**batch(), **inputs}).loss
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def same(actual, expected):
    torch.testing.assert_close(actual[0], expected[0])
    assert actual[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(actual[1][name], gradient, rtol=1e-4, atol=2e-6)


LOSS_ARGUMENTS = {
    "plain": {},
    "num_items": dict(num_items_in_batch=torch.tensor(20)),
    "num_items_int": dict(num_items_in_batch=20),
    "ignore_index": dict(ignore_index=5, labels=torch.arange(51).view(3, 17) % 9),
    "shift_labels": dict(shift_labels=torch.arange(51).view(3, 17)),
}


@pytest.mark.parametrize("arguments", LOSS_ARGUMENTS)
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "gemma2"])
def test_loss_and_gradients_are_those_of_the_model(name, arguments):
    model = decoder(name)
    expected = step(model, **LOSS_ARGUMENTS[arguments])
    assert fuse_linear_cross_entropy(model) is model
    actual = step(model, **LOSS_ARGUMENTS[arguments])
    same(actual, expected)
    assert model(**batch()).logits is None


def test_gemma2_caps_its_logits():
    model = decoder("gemma2", final_logit_softcapping=0.5)
    expected = step(model)
    same(step(fuse_linear_cross_entropy(model)), expected)


@pytest.mark.parametrize("tied", [False, True])
def test_tied_weights(tied):
    model = decoder(tie_word_embeddings=tied)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    expected = step(model)
    same(step(fuse_linear_cross_entropy(model)), expected)


def test_phi_has_a_bias():
    config = transformers.PhiConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.PhiForCausalLM(config).eval()
    model.training = True  # without dropout
    assert model.lm_head.bias is not None
    expected = step(model)
    same(step(fuse_linear_cross_entropy(model)), expected)


def test_evaluation_and_calls_without_labels_are_untouched():
    model, inputs = decoder(), batch()
    expected = model.eval()(**inputs)
    fuse_linear_cross_entropy(model)
    actual = model(**inputs)
    assert torch.equal(actual.logits, expected.logits) and torch.equal(actual.loss, expected.loss)
    assert model.train()(inputs["input_ids"]).logits is not None
    ids = inputs["input_ids"][:1, :5]
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape == (1, 8)


def test_ways_of_calling():
    model = fuse_linear_cross_entropy(decoder())
    inputs = batch()
    loss = model(**inputs).loss
    positional = model(inputs["input_ids"], None, None, None, None, inputs["labels"])
    assert torch.equal(positional.loss, loss)
    assert torch.equal(model(**inputs, return_dict=False)[0], loss)
    assert model(**inputs, output_hidden_states=True).hidden_states is not None
    kept = model(input_ids=inputs["input_ids"], labels=inputs["labels"][:, -4:], logits_to_keep=4).loss
    unfuse_linear_cross_entropy(model)
    original = model(input_ids=inputs["input_ids"], labels=inputs["labels"][:, -4:], logits_to_keep=4).loss
    torch.testing.assert_close(kept, original)


def test_undo_and_twice():
    model = decoder()
    signature = inspect.signature(model.forward)
    fuse_linear_cross_entropy(fuse_linear_cross_entropy(model))
    assert inspect.signature(model.forward) == signature  # Trainer looks at it
    clone = copy.deepcopy(model)
    assert clone.forward.__self__ is clone and clone(**batch()).logits is None
    assert unfuse_linear_cross_entropy(model) is model
    assert "forward" not in vars(model) and model(**batch()).logits is not None
    unfuse_linear_cross_entropy(model)


def test_gradient_checkpointing_and_autocast():
    model = fuse_linear_cross_entropy(decoder())
    expected = step(model)
    model.activation_checkpointing_enable()
    same(step(model), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**batch()).loss
    loss.backward()
    assert loss.dtype == torch.float32 and abs(loss - expected[0]) < 0.05 * expected[0]


def test_compile_fullgraph():
    model = decoder()
    expected = step(model)
    fuse_linear_cross_entropy(model)
    model.compile(fullgraph=True, backend="aot_eager")
    same(step(model), expected)


def test_bf16_model():
    model = decoder().bfloat16()
    expected = step(model)
    actual = step(fuse_linear_cross_entropy(model))
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-2, atol=0)
    assert actual[1]["lm_head.weight"].dtype == torch.bfloat16


def test_unknown_forward_is_refused():
    with pytest.raises(ValueError, match="GptOssForCausalLM, which cannot be fused: its forward is not"):
        fuse_linear_cross_entropy(decoder("gpt_oss"))
    with pytest.raises(ValueError, match="Linear"):
        fuse_linear_cross_entropy(torch.nn.Linear(3, 3))


def test_other_heads_are_refused_also_later():
    class Head(torch.nn.Linear):
        pass

    model = decoder()
    plain = model.lm_head
    model.lm_head = Head(64, tiny_transformers.VOCABULARY)
    with pytest.raises(ValueError, match="its lm_head is a Head, expected a plain"):
        fuse_linear_cross_entropy(model)
    model.lm_head = plain
    fuse_linear_cross_entropy(model)
    model.lm_head = Head(64, tiny_transformers.VOCABULARY)  # as an adapter does
    with pytest.raises(ValueError, match="its lm_head is a Head"):
        model(**batch())
    model.lm_head = plain
    plain.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="hooks"):
        model(**batch())


def test_other_losses_are_refused():
    model = decoder()
    model.loss_function = lambda logits, labels, **kwargs: logits.sum()
    with pytest.raises(
        ValueError, match="its loss function is <lambda>, expected transformers' ForCausalLMLoss"
    ):
        fuse_linear_cross_entropy(model)


def test_a_model_that_was_saved_whole_can_be_fused_again(tmp_path):
    torch.save(fuse_linear_cross_entropy(tiny_transformers.decoder("llama")), tmp_path / "model.pt")
    model = torch.load(tmp_path / "model.pt", weights_only=False).train()
    tokens = torch.arange(12)[None]
    assert fuse_linear_cross_entropy(model)(tokens, labels=tokens).logits is None


def test_what_is_changed_after_fusing_is_refused_not_ignored():
    tokens = torch.arange(12)[None]
    model = fuse_linear_cross_entropy(tiny_transformers.decoder("llama")).train()
    model.lm_head.register_full_backward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="lm_head has hooks"):
        model(tokens, labels=tokens)
    model = fuse_linear_cross_entropy(tiny_transformers.decoder("llama")).train()
    model.loss_function = lambda **_: torch.zeros(())
    with pytest.raises(ValueError, match="its loss function is"):
        model(tokens, labels=tokens)
