"""fused_experts under torch.compile, torch.export and opcheck."""

from __future__ import annotations

import pytest
import torch
from exact_experts import inputs

import tileformer

pytestmark = pytest.mark.slow  # what differs between ISAs is tested without a compiler
OPS = torch.ops.tileformer


def samples(grad: bool = False):
    arguments, biases = inputs(bias=True, grad=grad)
    yield arguments
    yield (*arguments, *biases.values(), None, None, 3, True, 1.5, 2.0)
    across = [
        t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(grad) for t in arguments[1:3]
    ]
    yield (arguments[0], *across, *arguments[3:])
    yield inputs(0, grad=grad)[0]
    yield inputs(dtype=torch.bfloat16, grad=grad)[0]


def packed_sample():
    (hidden, gate_up, down, weights, experts), _ = inputs(9, 2, 3, 64, 64)
    p = tileformer.pack_experts(gate_up, down, quantize="int4")
    return (hidden, p.gate_up, p.down, weights, experts, None, None, p.gate_up_scale, p.down_scale)


@pytest.mark.parametrize("sample", range(5))
def test_opcheck(sample):
    torch.library.opcheck(OPS.fused_experts_inference.default, list(samples())[sample])
    torch.library.opcheck(OPS.fused_experts_forward.default, list(samples(grad=True))[sample])


def test_opcheck_of_codes():
    torch.library.opcheck(OPS.fused_experts_inference.default, packed_sample())


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("sample", range(5))
def test_opcheck_of_the_backward(sample, store):
    arguments = list(samples())[sample]
    defaults = [argument.default_value for argument in OPS.fused_experts_inference.default._schema.arguments]
    out, stored = OPS.fused_experts_forward(*arguments, *defaults[len(arguments) :], store)
    for wanted in (63, 5):
        results = (torch.randn_like(out), stored if store else None, wanted)
        torch.library.opcheck(OPS.fused_experts_backward.default, (*results, *arguments))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_training_step(backend, recompute):
    (*tensors, experts), biases = inputs(bias=True, sentinels=True, grad=True)

    def loss(hidden, *others):
        out = tileformer.fused_experts(hidden.sin(), *others, experts, **biases, recompute=recompute)
        return out.square().sum()

    leaves = (*tensors, *biases.values())
    expected = torch.autograd.grad(loss(*tensors), leaves)
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(*tensors), leaves), expected, rtol=1e-4, atol=1e-5
    )


def test_compile_with_changing_numbers_of_tokens():
    compiled = torch.compile(tileformer.fused_experts, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (7, 12, 40):
        arguments, _ = inputs(tokens)
        assert torch.equal(compiled(*arguments), tileformer.fused_experts(*arguments))


def test_compile_packed_experts():
    (hidden, gate_up, down, weights, experts), _ = inputs(9, 2, 3, 64, 64)
    packed = tileformer.pack_experts(gate_up, down, quantize="int8")

    def layer(hidden):
        return tileformer.fused_experts(hidden * 2, packed, None, weights, experts) + 1

    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(hidden), layer(hidden))


class Layer(torch.nn.Module):
    def forward(self, *arguments):
        return tileformer.fused_experts(*arguments)


def test_export_keeps_the_operator():
    arguments, _ = inputs(14)
    tokens = torch.export.Dim("tokens", min=2, max=512)
    shapes = (({0: tokens}, {}, {}, {0: tokens}, {0: tokens}),)
    program = torch.export.export(Layer(), arguments, dynamic_shapes=shapes)
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert any("fused_experts" in name for name in names)
    longer, _ = inputs(33)
    assert torch.equal(program.module()(*longer), tileformer.fused_experts(*longer))
