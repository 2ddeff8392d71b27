"""torch's scaled_dot_product_attention: our function of that signature, and torch's own, carried out here."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from exact_attention import TOLERANCE

import tileformer
from tileformer import _C

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def close(a: torch.Tensor, b: torch.Tensor, factor: float = 2) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=factor * TOLERANCE[a.dtype])
    assert a.shape == b.shape and a.dtype == b.dtype


def tensors(q_shape, k_shape, dtype=torch.float32, dim_v=None):
    generator = torch.Generator().manual_seed(3)
    v_shape = (*k_shape[:-1], dim_v or k_shape[-1])
    return tuple(torch.randn(s, generator=generator).to(dtype) for s in (q_shape, k_shape, v_shape))


def boolean(*shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(4)) > 0.3
    if len(shape) > 1:
        mask[..., 0, :] = False  # a row that sees nothing
    return mask


PARITY = {
    # query, key, keyword arguments
    "plain": ((2, 4, 9, 16), (2, 4, 13, 16), {}),
    "causal": ((2, 4, 13, 16), (2, 4, 13, 16), dict(is_causal=True)),
    "causal_more_keys": ((2, 4, 5, 16), (2, 4, 13, 16), dict(is_causal=True)),
    "causal_more_queries": ((2, 4, 13, 16), (2, 4, 5, 16), dict(is_causal=True)),
    "scale": ((1, 2, 9, 16), (1, 2, 9, 16), dict(scale=0.7)),
    "gqa": ((2, 6, 9, 16), (2, 2, 13, 16), dict(enable_gqa=True)),
    "mqa_causal": ((2, 6, 9, 16), (2, 1, 9, 16), dict(enable_gqa=True, is_causal=True)),
    "bool_mask": ((2, 4, 9, 16), (2, 4, 13, 16), dict(attn_mask=boolean(2, 4, 9, 13))),
    "bool_mask_2d": ((2, 4, 9, 16), (2, 4, 13, 16), dict(attn_mask=boolean(9, 13))),
    "bool_mask_keys": ((2, 4, 9, 16), (2, 4, 13, 16), dict(attn_mask=boolean(2, 1, 1, 13))),
    "float_mask": ((2, 4, 9, 16), (2, 4, 13, 16), dict(attn_mask=torch.randn(2, 1, 9, 13))),
    "three_dims": ((5, 9, 16), (5, 13, 16), {}),
    "three_dims_mask": ((5, 9, 16), (5, 13, 16), dict(attn_mask=boolean(5, 9, 13))),
    "two_dims": ((9, 16), (13, 16), dict(attn_mask=boolean(9, 13))),
    "five_dims": ((2, 3, 4, 9, 16), (2, 3, 4, 13, 16), dict(attn_mask=boolean(2, 1, 4, 9, 13))),
    "broadcast_batch": ((1, 4, 9, 16), (3, 4, 13, 16), {}),
    "broadcast_heads": ((2, 4, 9, 16), (2, 1, 13, 16), {}),
    "no_keys": ((2, 4, 9, 16), (2, 4, 0, 16), {}),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PARITY)
def test_same_as_torch(name, dtype):
    q_shape, k_shape, options = PARITY[name]
    q, k, v = tensors(q_shape, k_shape, dtype)
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options = {**options, "attn_mask": mask.to(dtype)}
    close(
        tileformer.scaled_dot_product_attention(q, k, v, **options),
        F.scaled_dot_product_attention(q, k, v, **options),
    )


def test_same_as_torch_with_another_value_dim():
    q, k, v = tensors((2, 4, 9, 16), (2, 4, 13, 16), dim_v=24)
    close(tileformer.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("key_heads, value_heads", [(4, 1), (1, 4)])
def test_key_and_value_heads_broadcast(key_heads, value_heads):
    q, k, v = torch.randn(2, 4, 9, 16), torch.randn(2, key_heads, 13, 16), torch.randn(2, value_heads, 13, 16)
    close(tileformer.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


def test_dropout_follows_manual_seed():
    q, k, v = tensors((2, 4, 9, 16), (2, 4, 13, 16))
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(tileformer.scaled_dot_product_attention(q, k, v, dropout_p=0.4))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_mask_together_with_is_causal_is_an_error():
    q, k, v = tensors((1, 1, 4, 8), (1, 1, 4, 8))
    with pytest.raises(RuntimeError, match=r"attn_mask.*is_causal"):
        tileformer.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(4, 4), is_causal=True)


def test_unequal_heads_need_enable_gqa():
    q, k, v = tensors((1, 4, 4, 8), (1, 2, 4, 8))
    with pytest.raises(ValueError, match=r"4 heads.*2.*enable_gqa"):
        tileformer.scaled_dot_product_attention(q, k, v)


def test_positional_scale_is_a_type_error():
    q, k, v = tensors((1, 4, 4, 8), (1, 4, 4, 8))
    with pytest.raises(TypeError):
        tileformer.scaled_dot_product_attention(q, k, v, None, 0.0, False, 0.5)


# torch.nn.functional.scaled_dot_product_attention under tileformer.enabled()


def bshd(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "causal",
        "causal_more_keys",
        "scale",
        "gqa",
        "mqa_causal",
        "bool_mask",
        "bool_mask_2d",
        "float_mask",
    ],
)
def test_enabled_runs_here(name, layout, dtype):
    q_shape, k_shape, options = PARITY[name]
    q, k, v = tensors(q_shape, k_shape, dtype)
    if layout == "bshd":
        q, k, v = bshd(q), bshd(k), bshd(v)
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options = {**options, "attn_mask": mask.to(dtype)}
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    before = _C.sdpa_counts()
    with tileformer.enabled():
        out = F.scaled_dot_product_attention(q, k, v, **options)
    after = _C.sdpa_counts()
    assert after["tileformer"] == before["tileformer"] + 1 and after["torch"] == before["torch"]
    close(out, expected)
    assert out.stride() == expected.stride()


@pytest.mark.parametrize("masked", [False, True])
def test_enabled_keeps_the_contract_of_the_aten_operator(masked):
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q, k, v = (bshd(t) for t in tensors((2, 4, 9, 16), (2, 4, 13, 16)))
    mask = torch.randn(2, 1, 9, 13) if masked else None
    if masked:
        mask[:, :, 3] = -torch.inf
    expected, expected_lse = op(q, k, v, attn_mask=mask)
    with tileformer.enabled():
        out, lse = op(q, k, v, attn_mask=mask)
    close(out, expected)
    close(lse, expected_lse)
    assert out.stride() == expected.stride() and lse.stride() == expected_lse.stride()


def test_float64_stays_with_torch():
    q, k, v = tensors((1, 2, 9, 16), (1, 2, 9, 16), torch.float64)
    before = _C.sdpa_counts()
    with tileformer.enabled():
        out = F.scaled_dot_product_attention(q, k, v)
    after = _C.sdpa_counts()
    assert after["torch"] == before["torch"] + 1 and after["tileformer"] == before["tileformer"]
    assert torch.equal(out, F.scaled_dot_product_attention(q, k, v))


def test_enable_disable_and_nesting():
    q, k, v = tensors((1, 2, 9, 16), (1, 2, 9, 16))

    def runs_here() -> bool:
        before = _C.sdpa_counts()["tileformer"]
        F.scaled_dot_product_attention(q, k, v)
        return _C.sdpa_counts()["tileformer"] > before

    assert not runs_here()
    tileformer.enable()
    assert runs_here()
    with tileformer.enabled():
        assert runs_here()
    assert runs_here()
    tileformer.disable()
    assert not runs_here()
    with pytest.raises(KeyError), tileformer.enabled():
        raise KeyError
    assert not runs_here()
    assert tileformer.enabled()(runs_here)()


def test_enabled_entered_again_before_it_is_left():
    @tileformer.enabled()
    def recurse(depth: int) -> bool:
        return recurse(depth - 1) if depth else _C.sdpa_override()

    assert recurse(2)
    assert not _C.sdpa_override()


def test_enabled_blocks_that_overlap_as_those_of_threads_do():
    first, second = tileformer.enabled(), tileformer.enabled()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert _C.sdpa_override()
    second.__exit__()
    assert not _C.sdpa_override()


@pytest.mark.parametrize(
    "options", [{}, dict(is_causal=True), dict(attn_mask=torch.randn(9, 9))], ids=["plain", "causal", "mask"]
)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_gradients_under_enabled_are_those_of_torch(options, kv_heads):
    inputs = tensors((2, 4, 9, 16), (2, kv_heads, 9, 16))

    def gradients():
        q, k, v = (t.clone().requires_grad_() for t in inputs)
        F.scaled_dot_product_attention(q, k, v, enable_gqa=kv_heads != 4, **options).square().sum().backward()
        return q.grad, k.grad, v.grad

    expected = gradients()
    before = _C.sdpa_counts()
    with tileformer.enabled():
        actual = gradients()
    after = _C.sdpa_counts()
    assert after["tileformer_backward"] == before["tileformer_backward"] + 1
    assert after["torch_backward"] == before["torch_backward"]
    for a, e in zip(actual, expected):
        close(a, e, factor=5)


def test_float64_gradients_under_enabled_stay_with_torch():
    q = torch.randn(1, 2, 4, 8, dtype=torch.float64, requires_grad=True)
    before = _C.sdpa_counts()
    with tileformer.enabled():
        F.scaled_dot_product_attention(q, q, q).sum().backward()
    assert _C.sdpa_counts()["torch_backward"] == before["torch_backward"] + 1


def test_gradients_of_rows_that_see_nothing_under_enabled():
    q, k, v = (t.requires_grad_() for t in tensors((1, 2, 5, 16), (1, 2, 5, 16)))
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    with tileformer.enabled():
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask).sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))
    assert (q.grad[:, :, 2] == 0).all() and (q.grad[:, :, 1] != 0).any()


def test_module_that_calls_sdpa_runs_unchanged():
    attention = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(2, 10, 32)
    with torch.no_grad():
        expected = attention(x, x, x, need_weights=False)[0]
        before = _C.sdpa_counts()["tileformer"]
        with tileformer.enabled():
            layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True, dropout=0.0)
            layer.train()
            layer(x)
        assert _C.sdpa_counts()["tileformer"] > before
        with tileformer.enabled():
            close(attention(x, x, x, need_weights=False)[0], expected)
