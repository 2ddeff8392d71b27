"""experts_implementation="tileformer": the results of transformers' loop over the experts."""

from __future__ import annotations

import pytest
import tiny_experts
import tiny_transformers
import torch
from transformers.activations import ACT2FN
from transformers.integrations import moe

import tileformer
from tileformer.integrations import experts as integration

pytestmark = pytest.mark.slow  # models: what differs between ISAs is tested without them


def tokens(batch: int = 2, length: int = 19) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, tiny_transformers.VOCABULARY, (batch, length), generator=generator)


@pytest.fixture
def calls(monkeypatch):
    """Collects the layers that fused_experts computed."""
    original, seen = integration.fused_experts, []

    def spy(*arguments, **options):
        seen.append(options)
        return original(*arguments, **options)

    monkeypatch.setattr(integration, "fused_experts", spy)
    return seen


@pytest.fixture(params=tiny_experts.MODELS)
def model(request):
    return tiny_experts.model(request.param)


def step(model, implementation: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits and gradients of a training step."""
    model.set_experts_implementation(implementation)
    ids = tokens()
    output = model(input_ids=ids, labels=ids)
    model.zero_grad()
    output.loss.backward()
    return output.logits, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_logits_and_gradients_equal_eager(model, calls):
    model.train()
    logits, gradients = step(model, "eager")
    assert not calls
    ours, our_gradients = step(model, "tileformer")
    assert len(calls) == 2 - (model.config.model_type == "deepseek_v3")
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4)
    assert gradients.keys() == our_gradients.keys()
    for name, gradient in gradients.items():
        atol = 1e-5 * gradient.abs().max().item() + 1e-7
        torch.testing.assert_close(our_gradients[name], gradient, rtol=1e-3, atol=atol, msg=name)


def test_bfloat16_is_as_near_as_eager(model, calls):
    exact = model(tokens()).logits
    model.bfloat16()
    errors = {}
    for implementation in ("eager", "tileformer"):
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            errors[implementation] = (model(tokens()).logits.float() - exact).square().mean()
    assert calls and errors["tileformer"] < 2 * errors["eager"]


def test_generate(model, calls):
    prompt = tokens(2, 7)
    model.set_experts_implementation("eager")
    expected = model.generate(prompt, max_new_tokens=12, do_sample=False)
    model.set_experts_implementation("tileformer")
    assert torch.equal(model.generate(prompt, max_new_tokens=12, do_sample=False), expected)
    assert calls


def test_together_with_attention(model, calls):
    model.set_attn_implementation("eager")
    logits, _ = step(model, "eager")
    model.set_attn_implementation("tileformer")
    ours, _ = step(model, "tileformer")
    torch.testing.assert_close(ours, logits, rtol=1e-3, atol=1e-4)
    assert calls


def test_training_lowers_the_loss(model):
    model.set_experts_implementation("tileformer")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(8):
        loss = model(input_ids=tokens(), labels=tokens()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_gpt_oss_weights_are_not_copied(calls):
    model = tiny_experts.model("gpt_oss", experts_implementation="tileformer")
    with torch.no_grad():
        text = tileformer.explain(model, tokens())
    assert calls[0]["activation"] == "swiglu_oai" and calls[0]["interleaved"]
    experts = [part for part in text.split("\n[") if "fused_experts" in part]
    assert len(experts) == 2 and all("copied" not in part for part in experts)


def test_autocast_and_checkpointing():
    model = tiny_experts.model("mixtral", experts_implementation="tileformer")
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids=tokens(), labels=tokens()).loss
    loss.backward()
    wanted = model.model.layers[0].mlp.experts.gate_up_proj.grad.clone()
    assert wanted.dtype == torch.float32 and wanted.abs().sum() > 0
    model.zero_grad()
    model.gradient_checkpointing_enable()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(input_ids=tokens(), labels=tokens()).loss.backward()
    assert torch.equal(model.model.layers[0].mlp.experts.gate_up_proj.grad, wanted)


@pytest.fixture
def layer():
    """Of Mixtral: a layer of experts and its arguments."""
    model = tiny_experts.model("mixtral", experts_implementation="tileformer")
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(9, 64, generator=generator)
    weights, index = torch.rand(9, 4, generator=generator).topk(2)
    return model.model.layers[0].mlp.experts, (hidden, index, weights)


@pytest.fixture
def warnings(monkeypatch):
    seen = []
    monkeypatch.setattr(integration._logger, "warning_once", seen.append)
    return seen


@pytest.mark.parametrize("act_fn", ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast"])
def test_activations(layer, calls, warnings, act_fn):
    experts, arguments = layer
    experts.act_fn = ACT2FN[act_fn]
    ours = experts(*arguments)
    assert calls and not warnings
    experts.config._experts_implementation = "eager"
    torch.testing.assert_close(ours, experts(*arguments), rtol=1e-4, atol=1e-5)


class Halved(torch.nn.SiLU):
    def forward(self, x):
        return super().forward(x) / 2


def half_gate(gate_up):
    return gate_up.chunk(2, dim=-1)[0] / 2


UNSUPPORTED = {
    "act_fn ReLU": lambda experts: setattr(experts, "act_fn", torch.nn.ReLU()),
    "act_fn Halved": lambda experts: setattr(experts, "act_fn", Halved()),
    "its gate is not one of": lambda experts: setattr(experts, "_apply_gate", half_gate),
    "a norm follows each expert": lambda experts: setattr(experts, "has_post_expert_norm", True),
    "its experts have no gate": lambda experts: setattr(experts, "has_gate", False),
}


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_what_is_not_supported_is_reported_and_runs_eagerly(layer, calls, warnings, reason):
    experts, arguments = layer
    UNSUPPORTED[reason](experts)
    ours = experts(*arguments)
    assert not calls and len(warnings) == 1
    assert "MixtralExperts runs transformers' loop: " in warnings[0] and reason in warnings[0]
    experts.config._experts_implementation = "eager"
    assert torch.equal(ours, experts(*arguments))


def test_a_gate_of_another_class_is_not_taken_for_a_known_one(layer):
    experts, _ = layer

    class Clamped(type(experts)):
        def _apply_gate(self, gate_up):
            return half_gate(gate_up)

    experts.__class__ = Clamped
    assert "its gate is not one of" in integration.why_not(experts)


def test_slots_of_other_ranks_contribute_nothing(layer, calls):
    experts, (hidden, index, weights) = layer
    experts._is_expert_parallel = True
    index[::2, 0] = 4
    index[1::2, 1] = 7
    ours = experts(hidden, index, weights)
    served = torch.where(index < 4, weights, 0)
    experts._is_expert_parallel = False
    torch.testing.assert_close(ours, experts(hidden, index.clamp(max=3), served))
    with pytest.raises(ValueError, match="experts: got 7 in token 1, slot 1, expected 0 to 3"):
        experts(hidden, index, weights)


def test_compile(layer):
    experts, arguments = layer
    compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(*arguments), experts(*arguments))


def test_registered_by_name():
    assert moe.ALL_EXPERTS_FUNCTIONS["tileformer"] is integration.experts_forward
