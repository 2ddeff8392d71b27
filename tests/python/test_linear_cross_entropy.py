"""linear_cross_entropy against float64 torch: values, gradients, and what torch asks of an operator."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tileformer
from tileformer import _loss_pass, linear_cross_entropy

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4, torch.float64: 1e-12}


def problem(dtype=torch.float32, rows=(3, 50), hidden=64, vocab=1000, seed=0):
    """hidden, weight and bias as leaves, and target with a fifth of its rows ignored."""
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=generator)).to(dtype).requires_grad_()

    target = torch.randint(0, vocab, rows, generator=generator)
    target[torch.rand(rows, generator=generator) < 0.2] = -100
    return leaf(*rows, hidden), leaf(vocab, hidden, scale=0.3), leaf(vocab), target


def expected(
    hidden, weight, bias, target, *, z_loss=0.0, softcap=0.0, reduction="mean", ignore_index=-100, **kw
):
    """The same in float64 by torch, with all logits in memory."""
    logits = F.linear(hidden, weight, bias)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    logits, flat = logits.reshape(-1, weight.shape[0]), target.reshape(-1)
    counted = flat != ignore_index
    loss = F.cross_entropy(logits, flat, reduction=reduction, ignore_index=ignore_index, **kw)
    if z_loss:
        z = z_loss * logits.logsumexp(1).square()
        z = torch.where(counted, z, 0.0)
        loss = loss + {"mean": z.sum() / counted.sum(), "sum": z.sum(), "none": z}[reduction]
    return loss.reshape(target.shape) if reduction == "none" else loss


def relative(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return ((ours.double() - exact).abs().max() / exact.abs().max()).item()


def compare(dtype, options, with_bias=True, upstream=None, **shape):
    hidden, weight, bias, target = problem(dtype, **shape)
    leaves = [hidden, weight] + ([bias] if with_bias else [])
    exact = [t.detach().double().requires_grad_() for t in leaves]
    loss = linear_cross_entropy(hidden, weight, target, bias=bias if with_bias else None, **options)
    want = expected(exact[0], exact[1], exact[2] if with_bias else None, target, **options)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert loss.shape == want.shape
    assert relative(loss, want.detach()) < max(TOLERANCE[dtype] / 100, 1e-6 if dtype != torch.float64 else 0)
    gradient = torch.randn(loss.shape, dtype=torch.float64) if upstream is None else upstream
    loss.backward(gradient.to(loss.dtype))
    want.backward(gradient)
    for ours, theirs in zip(leaves, exact):
        assert ours.grad.dtype == dtype
        assert relative(ours.grad, theirs.grad) < TOLERANCE[dtype]


OPTIONS = {
    "plain": {},
    "smoothing": dict(label_smoothing=0.1),
    "z_loss": dict(z_loss=1e-2),
    "softcap": dict(softcap=3.0),
    "all": dict(label_smoothing=0.2, z_loss=1e-3, softcap=5.0),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients(dtype, name, reduction):
    compare(dtype, {**OPTIONS[name], "reduction": reduction}, with_bias=name != "plain")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_several_chunks_and_weight_slices(dtype, monkeypatch):
    monkeypatch.setattr(_loss_pass, "rows_per_chunk", lambda *sizes: 16)
    monkeypatch.setattr(_loss_pass, "weight_rows_per_slice", lambda *sizes: 300)
    compare(dtype, {"label_smoothing": 0.1})


def test_native_bf16_products(monkeypatch):
    """The path of CPUs that multiply bf16: right on every machine, fast on those."""
    monkeypatch.setattr(_loss_pass, "multiplies_bf16", lambda: True)
    hidden, weight, bias, target = problem(torch.bfloat16)
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight, bias)]
    loss = linear_cross_entropy(hidden, weight, target, bias=bias)
    want = expected(*exact, target)
    loss.backward()
    want.backward()
    assert relative(loss, want.detach()) < 2e-3  # logits are rounded to bf16, as F.linear rounds them
    for ours, theirs in zip((hidden, weight, bias), exact):
        assert relative(ours.grad, theirs.grad) < 2e-2


def test_chunks_are_planned_from_sizes_alone():
    assert _loss_pass.rows_per_chunk(4096, 576, 49152) == 256
    assert _loss_pass.rows_per_chunk(4096, 128, 49152) == 128
    assert _loss_pass.rows_per_chunk(4096, 8, 49152) == 64
    assert _loss_pass.rows_per_chunk(100000, 576, 1000) == 1048
    assert _loss_pass.rows_per_chunk(10, 576, 49152) == 10
    assert _loss_pass.rows_per_chunk(0, 576, 49152) == 1


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("fill", [float("nan"), float("inf")])
def test_ignored_rows_do_not_leak(reduction, fill):
    hidden, weight, _, target = problem()
    with torch.no_grad():
        hidden[target == -100] = fill
    loss = linear_cross_entropy(hidden, weight, target, reduction=reduction)
    loss.sum().backward()
    assert loss.isfinite().all() and weight.grad.isfinite().all()
    assert (hidden.grad[target == -100] == 0).all() and hidden.grad.isfinite().all()


@pytest.mark.parametrize("options", [{}, dict(label_smoothing=0.1), dict(z_loss=0.1)], ids=str)
def test_all_rows_ignored_is_what_torch_gives(options):
    hidden, weight, _, target = problem()
    target.fill_(-100)
    loss = linear_cross_entropy(hidden, weight, target, **options)
    loss.backward()
    assert loss.isnan() and (hidden.grad == 0).all() and (weight.grad == 0).all()
    assert linear_cross_entropy(hidden, weight, target, reduction="sum", **options) == 0


def test_nan_shows_in_its_row_only():
    hidden, weight, _, target = problem()
    target[1, 3] = 5
    with torch.no_grad():
        hidden[1, 3, 0] = float("nan")
    loss = linear_cross_entropy(hidden, weight, target, reduction="none")
    assert loss[1, 3].isnan() and loss.isnan().sum() == 1


def test_ignore_index_of_a_class():
    hidden, weight, _, target = problem()
    target[target < 0] = 3
    ours = linear_cross_entropy(hidden, weight, target, ignore_index=3)
    want = expected(hidden.double(), weight.double(), None, target, ignore_index=3)
    assert relative(ours, want) < 1e-6


def test_no_rows():
    hidden, weight, _, _ = problem(rows=(0,))
    target = torch.zeros(0, dtype=torch.int64)
    loss = linear_cross_entropy(hidden, weight, target)
    loss.backward()
    assert loss.isnan() and (weight.grad == 0).all()
    assert linear_cross_entropy(hidden, weight, target, reduction="none").shape == (0,)


def test_no_features():
    hidden, weight = torch.zeros(4, 0, requires_grad=True), torch.zeros(10, 0, requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, torch.arange(4))
    loss.backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(10.0).log())


def test_one_row_without_batch():
    hidden, weight, _, target = problem(rows=(1,))
    target[0] = 3
    loss = linear_cross_entropy(hidden[0], weight, target[0], reduction="none")
    assert loss.shape == () and torch.equal(loss, linear_cross_entropy(hidden, weight, target))


def test_any_strides():
    hidden, weight, _, target = problem(rows=(40,))
    exact = linear_cross_entropy(hidden, weight, target)
    strided_hidden = hidden.detach().t().contiguous().t()
    strided_weight = weight.detach().t().contiguous().t().requires_grad_()
    loss = linear_cross_entropy(strided_hidden, strided_weight, target)
    loss.backward()
    exact.backward()
    torch.testing.assert_close(loss, exact)
    torch.testing.assert_close(strided_weight.grad, weight.grad)


def test_only_what_is_wanted_is_computed(monkeypatch):
    asked = []
    original = tileformer._loss_ops.loss_pass
    monkeypatch.setattr(
        tileformer._loss_ops, "loss_pass", lambda *a, **k: asked.append(k["want"]) or original(*a, **k)
    )
    hidden, weight, bias, target = problem()
    with torch.no_grad():
        linear_cross_entropy(hidden, weight, target)
    linear_cross_entropy(hidden.detach(), weight.detach(), target)
    linear_cross_entropy(hidden.detach(), weight, target).backward()
    linear_cross_entropy(hidden, weight.detach(), target, bias=bias).backward()
    assert hidden.grad is not None and asked == [
        (False, False, False),
        (False, False, False),
        (False, True, False),
        (True, False, True),
    ]


def test_backward_twice_and_accumulation():
    hidden, weight, _, target = problem()
    loss = linear_cross_entropy(hidden, weight, target)
    loss.backward(retain_graph=True)
    once = weight.grad.clone()
    (3 * loss).backward()
    torch.testing.assert_close(weight.grad, 4 * once)


def test_loss_scale_keeps_small_fp16_gradients():
    """The gradients wait for backward in fp32: scaled first, rounded to fp16 after."""
    hidden, weight, _, target = problem(torch.float16, vocab=4000)
    loss = linear_cross_entropy(hidden * 1e-2, weight, target)
    (loss * 65536).backward()
    exact = weight.detach().double().requires_grad_()
    (65536 * expected(hidden.detach().mul(1e-2).double(), exact, None, target)).backward()
    assert (weight.grad != 0).float().mean() > 0.99
    assert relative(weight.grad, exact.grad) < 1e-3


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradcheck(reduction):
    hidden, weight, bias, target = problem(torch.float64, rows=(5,), hidden=4, vocab=7)
    target[:2] = torch.tensor([-100, 3])
    torch.autograd.gradcheck(
        lambda h, w, b: linear_cross_entropy(
            h, w, target, bias=b, label_smoothing=0.1, z_loss=0.05, softcap=2.0, reduction=reduction
        ),
        (hidden, weight, bias),
    )


def test_double_backward_is_refused():
    hidden, weight, _, target = problem()
    for reduction in ("mean", "none"):
        loss = linear_cross_entropy(hidden, weight, target, reduction=reduction).sum()
        (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
        with pytest.raises(NotImplementedError, match="second derivative"):
            gradient.sum().backward()


def test_forward_mode_is_refused():
    hidden, weight, _, target = problem()
    tangent = torch.ones_like(weight)
    with pytest.raises(NotImplementedError, match=r"jvp.*weight carries a tangent"):
        torch.func.jvp(lambda w: linear_cross_entropy(hidden, w, target), (weight.detach(),), (tangent,))


WRONG = {
    "target: got 1000 in row 4": dict(target=1000),
    "target: got -1 in row 4, expected 0 to 999, or ignore_index -100": dict(target=-1),
    "weight: got shape": dict(weight=torch.randn(1000, 63)),
    "weight: got torch.bfloat16": dict(weight=torch.randn(1000, 64).bfloat16()),
    "bias: got shape": dict(bias=torch.randn(999)),
    "reduction: got 'max'": dict(reduction="max"),
    "label_smoothing: got 1.5": dict(label_smoothing=1.5),
    "z_loss: got -1": dict(z_loss=-1.0),
    "softcap: got nan": dict(softcap=float("nan")),
    "target: got torch.int32": dict(target_dtype=torch.int32),
    "hidden: got torch.int64": dict(hidden=torch.zeros(3, 50, 64, dtype=torch.int64)),
}


@pytest.mark.parametrize("message", WRONG)
def test_errors_name_the_argument(message):
    hidden, weight, _, target = problem()
    changed = dict(WRONG[message])
    target = target.to(changed.pop("target_dtype", torch.int64))
    if "target" in changed:
        target.view(-1)[4] = changed.pop("target")
    with pytest.raises(ValueError) as error:
        linear_cross_entropy(changed.pop("hidden", hidden), changed.pop("weight", weight), target, **changed)
    assert str(error.value).startswith(message)


def test_target_of_another_shape():
    hidden, weight, _, target = problem()
    with pytest.raises(ValueError, match=r"target: got torch.int64 \[150\], expected torch.int64 \[3, 50\]"):
        linear_cross_entropy(hidden, weight, target.view(-1))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_opcheck(reduction):
    hidden, weight, bias, target = problem(rows=(20,))
    code = {"mean": 0, "none": 2}[reduction]
    for b in (bias, None):
        torch.library.opcheck(
            torch.ops.tileformer.linear_cross_entropy.default,
            (hidden, weight, target, b, -100, 0.1, 0.01, 3.0, code, True, True, b is not None),
        )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compile_fullgraph(reduction, backend):
    def function(h, w, b, t):
        loss = linear_cross_entropy(h.relu(), w * 2, t, bias=b, softcap=10.0, reduction=reduction)
        return (loss * loss).sum()

    def run(f):
        hidden, weight, bias, target = problem()
        loss = f(hidden, weight, bias, target)
        loss.backward()
        return loss.detach(), hidden.grad, weight.grad, bias.grad

    compiled = torch.compile(function, fullgraph=True, backend=backend)
    torch.testing.assert_close(run(compiled), run(function))


@pytest.mark.slow
def test_compile_with_changing_lengths():
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (10, 11, 300):
        hidden, weight, _, target = problem(rows=(rows,))
        torch.testing.assert_close(
            compiled(hidden, weight, target), linear_cross_entropy(hidden, weight, target)
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(dtype, compiled):
    def run(function, cast):
        hidden, weight, bias, target = problem()
        loss = function(cast(hidden), cast(weight), target, bias=cast(bias))
        return loss, (hidden, weight, bias)

    want, wanted = run(linear_cross_entropy, lambda t: t.to(dtype))
    want.backward()
    function = linear_cross_entropy
    if compiled:
        function = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=dtype):
        loss, leaves = run(function, lambda t: t)
    loss.backward()
    assert loss.dtype == torch.float32 and torch.equal(loss, want)
    for ours, theirs in zip(leaves, wanted):
        assert ours.grad.dtype == torch.float32
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant):
    hidden, weight, _, target = problem()
    linear_cross_entropy(hidden.sin(), weight, target).backward()
    want = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    checkpoint(
        lambda h: linear_cross_entropy(h.sin(), weight, target), hidden, use_reentrant=reentrant
    ).backward()
    assert torch.equal(hidden.grad, want[0]) and torch.equal(weight.grad, want[1])


def test_softmax_bits_do_not_depend_on_threads():
    logits = torch.randn(70, 5003).bfloat16()
    target, threads = torch.randint(0, 5003, (70,)), torch.get_num_threads()
    results = []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            rows, loss = logits.clone(), torch.empty(70)
            torch.ops.tileformer.cross_entropy_rows_(rows, target, loss, None, -100, 0.1, 0.01, 5.0, True)
            results.append((rows, loss))
    finally:
        torch.set_num_threads(threads)
    for rows, loss in results[1:]:
        assert torch.equal(rows, results[0][0]) and torch.equal(loss, results[0][1])


MEMORY = """
import resource, sys, torch, tileformer
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
rows, hidden, vocab = 8192, 64, 16384
dtype = getattr(torch, sys.argv[1])
h = torch.randn(rows, hidden).to(dtype).requires_grad_()
w = (torch.randn(vocab, hidden) * 0.1).to(dtype).requires_grad_()
t = torch.randint(0, vocab, (rows,))
tileformer.linear_cross_entropy(h[:64], w, t[:64], reduction=sys.argv[2]).sum().backward()
before = peak()
tileformer.linear_cross_entropy(h, w, t, reduction=sys.argv[2]).sum().backward()
print(peak() - before)
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_no_allocation_of_the_size_of_the_logits(dtype, reduction):
    command = [sys.executable, "-c", MEMORY, dtype, reduction]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    logits = 8192 * 16384 * 2  # in bf16: 256 MiB
    assert int(run.stdout) < logits / 4
