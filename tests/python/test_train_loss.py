"""Packed training: every attention computes the same loss and gradients, those of the documents alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import tiny_training
import torch

import tileformer  # noqa: F401  (registers the attention)
from tileformer.training import fused_loss
from tileformer.training.packing import IGNORED, Batch
from tileformer.training.settings import ATTENTIONS, Settings
from tileformer.training.setup import Setup, prepare, resolve_for_machine

pytestmark = pytest.mark.slow  # models: what differs between ISAs is tested without them


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Settings:
    folder = tmp_path_factory.mktemp("training")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        gguf, text = tiny_training.write_inputs(folder)
        shape = dict(layers=2, hidden=32, heads=4, kv_heads=2, sequence_length=48, batch_size=3)
        small = Settings(tokenizer=gguf, text=text, dtype="fp32", threads=1, steps=6, **shape)
        yield resolve_for_machine(small)[0]


def setup(settings: Settings, attention: str, **changes) -> Setup:
    threads = torch.get_num_threads()
    made = prepare(replace(settings, **{"attn": attention, "fused_loss": False, **changes}))
    torch.set_num_threads(threads)
    return made


def loss_and_gradients(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    inputs = dict(input_ids=batch.input_ids, position_ids=batch.position_ids, labels=batch.labels)
    loss = model(**inputs, use_cache=False).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def close(actual: tuple, expected: tuple) -> None:
    torch.testing.assert_close(actual[0], expected[0], atol=1e-5, rtol=1e-5)
    assert actual[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(actual[1][name], gradient, atol=2e-5, rtol=1e-3, msg=name)


def alone(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The mean loss over every packed sequence as a batch of its own."""
    total, count = 0.0, 0
    for tokens, positions in zip(batch.input_ids, batch.position_ids):
        begins = [*(positions == 0).nonzero().flatten().tolist(), len(tokens)]
        for begin, end in pairwise(begins):
            if end - begin > 1:
                sequence = tokens[None, begin:end]
                loss = model(input_ids=sequence, labels=sequence, use_cache=False).loss
                total, count = total + loss * (end - begin - 1), count + end - begin - 1
    return total / count


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_packed_row_has_the_loss_of_its_documents(settings, attention):
    made = setup(settings, attention)
    batch = made.rows.batch(0)
    assert (batch.position_ids == 0).sum() > 3, "documents begin within rows"
    assert torch.equal(batch.labels == IGNORED, batch.position_ids == 0)
    loss, gradients = loss_and_gradients(made.trainee.model, batch)
    made.trainee.model.zero_grad()
    made.trainee.model.set_attn_implementation("eager")
    expected = alone(made.trainee.model, batch)
    expected.backward()
    expected_gradients = {name: p.grad for name, p in made.trainee.model.named_parameters()}
    close((loss, gradients), (expected.detach(), expected_gradients))


@pytest.mark.parametrize("attention", ["sdpa", "tileformer"])
def test_six_steps_agree_with_eager(settings, attention):
    losses = [
        [made.training.advance().loss for _ in range(6)]
        for made in (setup(settings, name) for name in ("eager", attention))
    ]
    assert losses[1] == pytest.approx(losses[0], abs=2e-5)
    assert losses[0][-1] < losses[0][0]


def test_gradient_checkpointing_changes_nothing_but_memory(settings):
    plain = setup(settings, "tileformer")
    checkpointed = setup(settings, "tileformer", gradient_checkpointing=True)
    batch = plain.rows.batch(0)
    assert checkpointed.trainee.model.is_activation_checkpointing
    close(
        loss_and_gradients(checkpointed.trainee.model, batch), loss_and_gradients(plain.trainee.model, batch)
    )


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_bf16_products_over_fp32_weights(settings, attention):
    fp32, bf16 = setup(settings, attention), setup(settings, attention, dtype="bfloat16")
    for _ in range(3):
        assert bf16.training.advance().loss == pytest.approx(fp32.training.advance().loss, abs=0.05)
    assert all(p.dtype == torch.float32 for p in bf16.trainee.model.parameters())


@pytest.mark.skipif(not fused_loss.is_available(), reason="this tileformer has no fused loss")
@pytest.mark.parametrize("attention", ["sdpa", "tileformer"])
def test_the_fused_loss_is_the_loss(settings, attention):
    plain, fused = setup(settings, attention), setup(settings, attention, fused_loss=True)
    batch = plain.rows.batch(0)
    close(loss_and_gradients(fused.trainee.model, batch), loss_and_gradients(plain.trainee.model, batch))


def test_no_dense_mask_is_made_for_tileformer(settings, monkeypatch):
    from transformers.modeling_utils import AttentionInterface

    original, masks = AttentionInterface._global_mapping["tileformer"], []

    def spy(module, query, key, value, attention_mask, **kwargs):
        masks.append(attention_mask)
        return original(module, query, key, value, attention_mask, **kwargs)

    monkeypatch.setitem(AttentionInterface._global_mapping, "tileformer", spy)
    made = setup(settings, "tileformer")
    made.training.advance()
    assert len(masks) == settings.layers
    assert all(mask.numel() < 2 * settings.sequence_length for mask in masks)
