"""load_balancing_loss and router_z_loss: against transformers, by definition, masks, errors."""

from __future__ import annotations

import math

import pytest
import torch

from tileformer import load_balancing_loss, route, router_z_loss


def layers(count=2, tokens=24, experts=8, dtype=torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(tokens, experts, generator=generator).to(dtype).requires_grad_() for _ in range(count)
    ]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_load_balancing_is_transformers(count, masked):
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    ours, theirs = layers(count), layers(count)
    mask = (torch.arange(24).reshape(2, 12) % 5 > 0).long() if masked else None
    loss = load_balancing_loss(ours, 3, mask=mask)
    expected = mixtral.load_balancing_loss_func(tuple(theirs), 8, 3, mask)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad, b.grad)


def test_choice_of_route():
    (logits,) = layers(1)
    _, experts = route(logits, 3)
    expected = load_balancing_loss(logits, 3)
    torch.testing.assert_close(load_balancing_loss(logits, experts=experts), expected)
    none = torch.cat((experts, torch.full((24, 1), -1), torch.full((24, 1), 8)), 1)
    torch.testing.assert_close(load_balancing_loss([logits], experts=[none]), expected)
    # Even use is the least.
    even = torch.arange(24 * 2).reshape(24, 2) % 8
    torch.testing.assert_close(load_balancing_loss(torch.zeros(24, 8), experts=even), torch.tensor(2.0))


@pytest.mark.parametrize(
    "loss", [lambda x, m: load_balancing_loss(x, 2, mask=m), lambda x, m: router_z_loss(x, mask=m)]
)
def test_masked_tokens_have_no_influence(loss):
    (logits,) = layers(1)
    mask = torch.ones(24, dtype=torch.bool)
    mask[[3, 9]] = False
    expected = loss(logits.detach()[mask], None)
    with torch.no_grad():
        logits[3] = math.nan
        logits[9, 2] = math.inf
    masked = loss(logits, mask)
    torch.testing.assert_close(masked, expected)
    masked.backward()
    assert logits.grad.isfinite().all() and (logits.grad[[3, 9]] == 0).all()
    assert loss(logits, torch.zeros(24)).isnan()


def test_z_loss():
    a, b = layers(2)
    each = [x.logsumexp(1).square() for x in (a, b)]
    torch.testing.assert_close(router_z_loss(a), each[0].mean())
    torch.testing.assert_close(router_z_loss([a, b]), torch.cat(each).mean())
    weights = torch.rand(24)
    torch.testing.assert_close(router_z_loss(b, mask=weights), (each[1] * weights).sum() / weights.sum())


def test_precision_and_gradcheck():
    (logits,) = layers(1, tokens=5, dtype=torch.float64)
    _, experts = route(logits, 2)
    assert torch.autograd.gradcheck(lambda x: load_balancing_loss(x, experts=experts), (logits,))
    assert torch.autograd.gradcheck(router_z_loss, (logits,))
    (half,) = layers(1, dtype=torch.bfloat16)
    for loss in (load_balancing_loss(half, 2), router_z_loss(half)):
        assert loss.dtype == torch.float32


@pytest.mark.slow
def test_compile():
    def loss(logits):
        return load_balancing_loss(logits, 2) + router_z_loss(logits)

    (logits,) = layers(1)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits), loss(logits))


X, E = torch.randn(4, 8), torch.zeros(4, 2, dtype=torch.int64)
ERRORS = {
    "neither": (lambda: load_balancing_loss(X), "top_k: got both or none"),
    "both": (lambda: load_balancing_loss(X, 2, experts=E), "top_k: got both or none"),
    "no_layer": (lambda: load_balancing_loss([], 2), "logits: got no layer"),
    "rank": (lambda: router_z_loss(X[0]), "logits: got 1 dimensions, expected 2"),
    "layers": (lambda: load_balancing_loss([X, X], experts=E), "experts: got 1 layers, expected 2"),
    "tokens": (
        lambda: load_balancing_loss(X, experts=E[:3]),
        r"experts: got shape \[3, 2\], expected \[4, k\]",
    ),
    "mask": (lambda: router_z_loss(X, mask=torch.ones(5)), r"mask: got shape \[5\], expected 4 elements"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        call()
