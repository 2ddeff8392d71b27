"""pack_experts: layouts made plain, int8 and int4 weights."""

from __future__ import annotations

import pytest
import torch
from exact_experts import exact_experts, inputs

import tileformer


def test_interleaved_and_transposed_weights_become_plain_ones():
    (hidden, gate_up, down, weights, experts), biases = inputs(bias=True)
    exact = tileformer.fused_experts(hidden, gate_up, down, weights, experts, **biases, interleaved=True)
    across = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (gate_up, down)]
    packed = tileformer.pack_experts(*across, **biases, interleaved=True)
    assert packed.gate_up.is_contiguous() and packed.down.is_contiguous() and not packed.quantized
    out = tileformer.fused_experts(hidden, packed, None, weights, experts)
    torch.testing.assert_close(out, exact, rtol=1e-5, atol=1e-5)


def test_gradients_reach_weights_that_are_packed_but_not_quantized():
    arguments, _ = inputs(grad=True)
    hidden, gate_up, down, weights, experts = arguments
    wanted = torch.autograd.grad(
        tileformer.fused_experts(*arguments, interleaved=True).square().sum(), arguments[:4]
    )
    packed = tileformer.pack_experts(gate_up, down, interleaved=True)
    out = tileformer.fused_experts(hidden, packed, None, weights, experts)
    for is_, of in zip(torch.autograd.grad(out.square().sum(), arguments[:4]), wanted):
        torch.testing.assert_close(is_, of, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("quantize, group", [("int8", 64), ("int4", 32), ("int4", 64), ("int4", 128)])
@pytest.mark.parametrize("tokens", [1, 40])
def test_codes_are_computed_as_the_numbers_they_stand_for(dtype, quantize, group, tokens):
    (hidden, gate_up, down, weights, experts), biases = inputs(tokens, 2, 4, 256, 128, dtype=dtype, bias=True)
    packed = tileformer.pack_experts(
        gate_up, down, **biases, quantize=quantize, group=group, interleaved=True
    )
    assert packed.quantized
    out = tileformer.fused_experts(hidden, packed, None, weights, experts)
    numbers = packed.dequantize(torch.float64)
    exact = exact_experts(
        hidden.double(),
        *numbers,
        weights.double(),
        experts,
        gate_up_bias=packed.gate_up_bias.double(),
        down_bias=packed.down_bias.double(),
    )
    # Few tokens meet codes with 15 bits of the largest activation.
    fp32 = 1e-4 if tokens == 1 else 2e-6
    atol = {torch.float32: fp32, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype] * exact.abs().max()
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=atol.item())


@pytest.mark.parametrize("quantize, bits, bytes_per_weight", [("int8", 8, 1.03), ("int4", 4, 0.57)])
def test_quantization_rounds_to_the_nearest_code(quantize, bits, bytes_per_weight):
    (_, gate_up, down, _, _), _ = inputs(1, 2, 4, 256, 128, dtype=torch.float32)
    gate_up[0, 0] = 0  # a row, or group, of zeros
    packed = tileformer.pack_experts(gate_up, down, quantize=quantize)
    for weight, numbers in zip((gate_up, down), packed.dequantize()):
        group = weight.shape[-1] if quantize == "int8" else 64
        largest = weight.unflatten(-1, (-1, group)).abs().amax(-1, keepdim=True)
        error = (numbers - weight).unflatten(-1, (-1, group)).abs()
        assert (error <= largest / (2 ** (bits - 1) - 1) / 2 * 1.001).all()
        assert torch.equal(numbers[weight == 0], torch.zeros(int((weight == 0).sum())))
    assert packed.nbytes < bytes_per_weight * (gate_up.numel() + down.numel())


def test_no_gradient_through_codes():
    (hidden, gate_up, down, weights, experts), _ = inputs(21, 2, 5, 64, 64)
    packed = tileformer.pack_experts(gate_up, down, quantize="int8")
    for n in (0, 3):
        tensors = [hidden, packed, None, weights, experts]
        tensors[n] = tensors[n].clone().requires_grad_()
        with pytest.raises(NotImplementedError, match="no gradients through quantised weights"):
            tileformer.fused_experts(*tensors)
        with torch.no_grad():
            tileformer.fused_experts(*tensors)


def test_packed_experts_under_autocast():
    (hidden, gate_up, down, weights, experts), _ = inputs(21, 2, 5, 64, 64)
    packed = tileformer.pack_experts(gate_up, down, quantize="int8")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tileformer.fused_experts(hidden, packed, None, weights, experts)
    assert torch.equal(out, tileformer.fused_experts(hidden.bfloat16(), packed, None, weights, experts))


ERRORS = {
    "quantize: got 'fp8', expected None, 'int8' or 'int4'": {"quantize": "fp8"},
    "group: got 16, expected 32, 64 or 128": {"quantize": "int4", "group": 16},
    "group: got 64, expected a divisor of the 24 columns of gate_up": {"quantize": "int4"},
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_of_options(message):
    (_, gate_up, down, _, _), _ = inputs()
    with pytest.raises(ValueError, match=message):
        tileformer.pack_experts(gate_up, down, **ERRORS[message])


def test_errors_of_weights():
    (hidden, gate_up, down, weights, experts), _ = inputs()
    with pytest.raises(ValueError, match=r"down: got \[5, 24, 11\], expected \[5, 24, 12\] beside gate_up"):
        tileformer.pack_experts(gate_up, down[..., 1:])
    with pytest.raises(ValueError, match=r"gate_up: got torch.int8 \[5, 24, 24\], expected \[experts, 2"):
        tileformer.pack_experts(gate_up.to(torch.int8), down)
    packed = tileformer.pack_experts(gate_up, down)
    with pytest.raises(ValueError, match="gate_up: got packed experts beside down"):
        tileformer.fused_experts(hidden, packed, down, weights, experts)
