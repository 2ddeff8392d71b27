"""grouped_matmul against a loop of F.linear, torch's own grouped_mm and gradcheck."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import tileformer

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def loop(rows, weight, counts, bias=None):
    """One F.linear for each expert, in float64."""
    outs, first = [], 0
    for e, n in enumerate(counts.tolist()):
        x = rows[first : first + n].double()
        outs.append(F.linear(x, weight[e].double(), None if bias is None else bias[e].double()))
        first += n
    outs.append(torch.zeros(rows.shape[0] - first, weight.shape[1], dtype=torch.float64))
    return torch.cat(outs)


def inputs(counts, n_in=40, n_out=24, dtype=torch.float32, beyond=3, transposed=False, grad=True):
    torch.manual_seed(1)
    counts = torch.tensor(counts)
    rows = torch.randn(int(counts.sum()) + beyond, n_in).to(dtype)
    shape = (len(counts), n_in, n_out) if transposed else (len(counts), n_out, n_in)
    weight = (torch.randn(shape) / n_in**0.5).to(dtype)
    bias = torch.randn(len(counts), n_out).to(dtype)
    if transposed:
        weight = weight.transpose(1, 2)
    return tuple(t.detach().requires_grad_(grad) for t in (rows, weight, bias)), counts


def assert_near(is_, exact, dtype):
    torch.testing.assert_close(is_.double(), exact, rtol=TOLERANCE[dtype], atol=4 * TOLERANCE[dtype])


@pytest.mark.parametrize("transposed", [False, True], ids=["out_in", "in_out"])
@pytest.mark.parametrize("counts", [[5, 0, 20], [1, 2, 3], [0, 0, 70], [100, 9, 8]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_is_a_loop_of_linear(dtype, counts, transposed):
    (rows, weight, bias), counts = inputs(counts, dtype=dtype, transposed=transposed)
    out = tileformer.grouped_matmul(rows, weight, counts, bias)
    expected = loop(rows, weight, counts, bias)
    assert out.dtype == dtype
    assert_near(out, expected, dtype)
    assert (out[counts.sum() :] == 0).all()
    grad = torch.randn_like(out)
    grads = torch.autograd.grad(out, (rows, weight, bias), grad)
    for got, exact, like in zip(
        grads, torch.autograd.grad(expected, (rows, weight, bias), grad.double()), (rows, weight, bias)
    ):
        assert got.dtype == dtype and got.stride() == like.stride()
        # torch rounded the exact gradient to dtype as well.
        assert_near(got, exact.double(), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_is_torch_grouped_mm(dtype):
    (rows, weight, _), counts = inputs([16, 48, 0, 32], 64, 96, dtype, beyond=0)
    expected = F.grouped_mm(rows, weight.transpose(1, 2), offs=counts.cumsum(0).int())
    out = tileformer.grouped_matmul(rows, weight, counts)
    assert_near(out, expected.double(), dtype)
    grad = torch.randn_like(out)
    for got, theirs in zip(
        torch.autograd.grad(out, (rows, weight), grad), torch.autograd.grad(expected, (rows, weight), grad)
    ):
        assert_near(got, theirs.double(), dtype)


def test_counts_are_read_at_each_call():
    (rows, weight, bias), counts = inputs([4, 6, 2], grad=False)
    for values in ([4, 6, 2], [0, 15, 0], [0, 0, 0], [1, 1, 1]):
        counts.copy_(torch.tensor(values))
        assert_near(
            tileformer.grouped_matmul(rows, weight, counts, bias),
            loop(rows, weight, counts, bias),
            rows.dtype,
        )


def test_any_strides():
    (rows, weight, bias), counts = inputs([4, 6, 2], grad=False)
    expected = tileformer.grouped_matmul(rows, weight, counts, bias)
    views = [
        (rows.t().contiguous().t(), weight, counts, bias),
        (F.pad(rows, (2, 3))[:, 2:-3], F.pad(weight, (1, 4))[..., 1:-4], counts, bias.t().contiguous().t()),
        (rows, torch.stack((weight, weight), -1)[..., 0], torch.stack((counts, counts), 1)[:, 0], bias),
    ]
    for view in views:
        assert torch.equal(tileformer.grouped_matmul(*view), expected)
    # A gradient without memory of its own, as that of sum().
    rows.requires_grad_()
    tileformer.grouped_matmul(rows, weight, counts).sum().backward()
    assert_near(rows.grad[:12], weight.double().sum(1).repeat_interleave(counts, 0), torch.float32)


@pytest.mark.parametrize("wanted", ["rows", "weight", "bias", "no_bias"])
def test_gradients_of_some(wanted):
    (rows, weight, bias), counts = inputs([5, 0, 20])
    tensors = {"rows": rows, "weight": weight, "bias": bias}
    if wanted == "no_bias":
        tensors.pop("bias")
        bias = None
    for name, tensor in tensors.items():
        tensor.requires_grad_(wanted in (name, "no_bias"))
    tileformer.grouped_matmul(rows, weight, counts, bias).square().sum().backward()
    for name, tensor in tensors.items():
        assert (tensor.grad is not None) == (wanted in (name, "no_bias"))


def test_sizes_of_zero_keep_the_graph():
    for counts, n_in, n_out, beyond in (
        ([0, 0], 8, 4, 0),
        ([2, 1], 0, 4, 0),
        ([2, 1], 8, 0, 1),
        ([], 8, 4, 2),
    ):
        (rows, weight, bias), counts = inputs(counts, n_in, n_out, beyond=beyond)
        out = tileformer.grouped_matmul(rows, weight, counts.long(), bias)
        assert_near(out, loop(rows, weight, counts, bias), torch.float32)
        out.sum().backward()
        for tensor in (rows, weight, bias):
            assert tensor.grad.shape == tensor.shape
        assert_near(bias.grad, counts[:, None].expand(-1, n_out).double(), torch.float32)


def test_same_bits_for_any_threads():
    (rows, weight, bias), counts = inputs([70, 3, 150], 300, 130)
    results = []
    threads = torch.get_num_threads()
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        out = tileformer.grouped_matmul(rows, weight, counts, bias)
        results.append((out, *torch.autograd.grad(out, (rows, weight, bias), torch.ones_like(out))))
    torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_autocast():
    (rows, weight, bias), counts = inputs([5, 0, 20])
    with torch.autocast("cpu", torch.bfloat16):
        out = tileformer.grouped_matmul(rows, weight, counts, bias)
    assert out.dtype == torch.bfloat16
    assert_near(out, loop(rows.bfloat16(), weight.bfloat16(), counts, bias), torch.bfloat16)
    out.sum().backward()
    assert rows.grad.dtype == weight.grad.dtype == bias.grad.dtype == torch.float32


ROWS, WEIGHT, COUNTS = torch.randn(10, 8), torch.randn(2, 4, 8), torch.tensor([3, 5])
ERRORS = {
    "rows": ((ROWS[0], WEIGHT, COUNTS), "rows: got 1 dimensions, expected 2"),
    "rows_dtype": ((ROWS.int(), WEIGHT, COUNTS), "rows: got dtype int32"),
    "weight": ((ROWS, WEIGHT[0], COUNTS), "weight: got 2 dimensions, expected 3"),
    "weight_dtype": ((ROWS, WEIGHT.half(), COUNTS), "weight: got dtype float16, expected float32, as rows"),
    "weight_shape": ((ROWS, WEIGHT[..., 1:], COUNTS), r"weight: got shape \[2, 4, 7\], expected"),
    "counts_dtype": ((ROWS, WEIGHT, COUNTS.int()), "counts: got dtype int32, expected int64"),
    "counts_shape": ((ROWS, WEIGHT, COUNTS[:1]), r"counts: got shape \[1\], expected \[2\]"),
    "negative": ((ROWS, WEIGHT, torch.tensor([-1, 5])), "counts: got -1 for expert 0"),
    "too_many": ((ROWS, WEIGHT, torch.tensor([6, 5])), "counts: got more than 10 rows .* sum of at most 10"),
    "bias_shape": ((ROWS, WEIGHT, COUNTS, torch.randn(2, 3)), r"bias: got shape \[2, 3\], expected \[2, 4\]"),
    "bias_dtype": ((ROWS, WEIGHT, COUNTS, torch.randn(2, 4).double()), "bias: got dtype float64"),
    "device": ((ROWS.to("meta"), WEIGHT, COUNTS), "on the CPU"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    arguments, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        tileformer.grouped_matmul(*arguments)


def test_what_has_no_derivative_is_refused():
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="rows carries a tangent"):
        tileformer.grouped_matmul(forward_ad.make_dual(ROWS, ROWS), WEIGHT, COUNTS)
    with pytest.raises(NotImplementedError, match=r"torch\.func\.grad"):
        torch.func.grad(lambda x: tileformer.grouped_matmul(x, WEIGHT, COUNTS).sum())(ROWS)


@pytest.mark.parametrize("transposed", [False, True], ids=["out_in", "in_out"])
def test_gradcheck(transposed):
    tensors, counts = inputs([3, 0, 2], 4, 3, torch.float64, beyond=1, transposed=transposed)
    for leaves in (tensors, tensors[:2]):

        def call(rows, weight, *bias):
            return tileformer.grouped_matmul(rows, weight, counts, *bias)

        assert torch.autograd.gradcheck(call, leaves)
        assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.slow
def test_opcheck():
    op = torch.ops.tileformer.grouped_matmul.default
    backward = torch.ops.tileformer.grouped_matmul_backward.default
    for transposed in (False, True):
        (rows, weight, bias), counts = inputs([5, 0, 20], transposed=transposed)
        torch.library.opcheck(op, (rows, weight, counts, bias))
        torch.library.opcheck(op, (rows.bfloat16(), weight.bfloat16(), counts))
        for wanted in (7, 2):
            torch.library.opcheck(backward, (rows, weight, counts, bias, torch.randn(28, 24), wanted))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile(dynamic):
    torch._dynamo.reset()

    def step(rows, weight, counts, bias):
        return tileformer.grouped_matmul(rows * 2, weight, counts, bias).square()

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic)
    for counts in ([5, 0, 20], [9, 30, 1]):
        for transposed in (False, True):
            (rows, weight, bias), counts_ = inputs(counts, transposed=transposed)
            expected, out = (f(rows, weight, counts_, bias) for f in (step, compiled))
            torch.testing.assert_close(out, expected)
            grads = (torch.autograd.grad(x.sum(), (rows, weight, bias)) for x in (expected, out))
            for a, b in zip(*grads):
                torch.testing.assert_close(a, b)
