"""Bad input: an exception that names the argument, what was given and what is allowed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import tileformer

Q = torch.randn(2, 4, 6, 16)
KV = torch.randn(2, 2, 9, 16)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


FLASH_ATTENTION = {
    # query, key, value, options, what the message has to contain
    "dtype_mix": (Q, KV.bfloat16(), KV, {}, ["key", "bfloat16", "float32"]),
    "integer_query": (Q.int(), KV.int(), KV.int(), {}, ["query", "int32"]),
    "page_dtype": (Q.to(torch.int8), KV, KV, {}, ["query", "int8", "float32"]),
    "unknown_dtype": (Q.to(torch.uint8), KV, KV, {}, ["query", "Byte"]),
    "heads_do_not_divide": (Q[:, :3], KV, KV, {}, ["heads", "3", "2"]),
    "dim_mismatch": (Q, KV[..., :8], KV, {}, ["key", "8", "16"]),
    "key_value_lengths": (Q, KV, KV[:, :, :5], {}, ["value", "5", "9"]),
    "batch_mismatch": (Q, KV[:1], KV[:1], {}, ["key", "1", "2"]),
    "three_dimensions": (Q[0], KV[0], KV[0], {}, ["query", "3", "4"]),
    "five_dimensions": (Q[None], KV[None], KV[None], {}, ["query", "5", "4"]),
    "causal_word": (Q, KV, KV, dict(causal="left"), ["causal", "left", "top_left", "bottom_right"]),
    "window_not_a_pair": (Q, KV, KV, dict(window=3), ["window", "3", "left, right"]),
    "window_too_negative": (Q, KV, KV, dict(window=(-2, 0)), ["window", "-2"]),
    "mask_shape": (Q, KV, KV, dict(attn_mask=torch.ones(6, 8, dtype=torch.bool)), ["attn_mask", "8", "9"]),
    "mask_dtype": (Q, KV, KV, dict(attn_mask=torch.ones(6, 9, dtype=torch.int64)), ["attn_mask", "int64"]),
    "mask_dimensions": (Q, KV, KV, dict(attn_mask=torch.ones(1, 1, 1, 6, 9)), ["attn_mask", "5"]),
    "alibi_shape": (Q, KV, KV, dict(alibi_slopes=torch.ones(3)), ["alibi_slopes", "3", "4"]),
    "sinks_shape": (Q, KV, KV, dict(sinks=torch.ones(2)), ["sinks", "2", "4"]),
    "sinks_dtype": (Q, KV, KV, dict(sinks=torch.ones(4, dtype=torch.int32)), ["sinks", "int32"]),
    "softcap": (Q, KV, KV, dict(softcap=-1.0), ["softcap", "-1"]),
    "scale_nan": (Q, KV, KV, dict(scale=float("nan")), ["scale", "nan"]),
    "dropout": (Q, KV, KV, dict(dropout_p=1.5), ["dropout_p", "1.5"]),
}


@pytest.mark.parametrize("name", FLASH_ATTENTION)
def test_flash_attention(name):
    query, key, value, options, words = FLASH_ATTENTION[name]
    with pytest.raises(ValueError) as caught:
        tileformer.flash_attention(query, key, value, **options)
    for word in words:
        assert word in str(caught.value)


def test_head_dim_beyond_what_is_supported():
    with pytest.raises(RuntimeError, match=r"query.*577.*576"):
        tileformer.flash_attention(*(torch.zeros(1, 1, 2, 577),) * 3)


PACKED = {
    "decreasing": (int32(0, 5, 3, 6), int32(0, 3, 5, 9), ["cu_seqlens_query", "3"]),
    "wrong_end": (int32(0, 5), int32(0, 9), ["cu_seqlens_query", "5", "6"]),
    "wrong_end_key": (int32(0, 6), int32(0, 8), ["cu_seqlens_key", "8", "9"]),
    "wrong_start": (int32(1, 6), int32(0, 9), ["cu_seqlens_query", "1", "0"]),
    "different_counts": (int32(0, 2, 6), int32(0, 9), ["cu_seqlens", "3", "2"]),
    "float": (torch.tensor([0.0, 6.0]), int32(0, 9), ["cu_seqlens_query", "float32", "int32"]),
    "missing": (int32(0, 6), None, ["cu_seqlens"]),
}


@pytest.mark.parametrize("name", PACKED)
def test_varlen(name):
    cu_q, cu_k, words = PACKED[name]
    q, kv = torch.randn(6, 4, 16), torch.randn(9, 2, 16)
    with pytest.raises(ValueError) as caught:
        tileformer.flash_attn_varlen_func(q, kv, kv, cu_q, cu_k, 6, 9)
    for word in words:
        assert word in str(caught.value)


def test_varlen_ranks():
    q, kv, cu = torch.randn(6, 4, 16), torch.randn(6, 2, 16), int32(0, 6)
    with pytest.raises(ValueError, match=r"q has 4 dimensions.*total, heads, dim"):
        tileformer.flash_attn_varlen_func(q[None], kv, kv, cu, cu, 6, 6)
    with pytest.raises(ValueError, match=r"k has 3 dimensions.*batch, seq, heads, dim"):
        tileformer.flash_attn_func(q[None], kv, kv)
    with pytest.raises(ValueError, match=r"qkv has shape.*dimension 2 has to be 3"):
        tileformer.flash_attn_qkvpacked_func(torch.randn(1, 5, 2, 4, 16))


def test_positional_scale_is_a_type_error():
    with pytest.raises(TypeError):
        tileformer.flash_attention(Q, KV, KV, 0.5)


DIFFERENTIABLE = dict(
    query=Q,
    key=KV,
    value=KV,
    attn_mask=torch.zeros(6, 9),
    sinks=torch.zeros(4),
    alibi_slopes=torch.ones(4),
)


def test_a_gradient_of_alibi_slopes_is_refused():
    slopes = torch.ones(4, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"alibi_slopes requires grad.*attn_mask"):
        tileformer.flash_attention(Q, KV, KV, alibi_slopes=slopes)


def test_a_second_derivative_is_refused():
    q = Q.clone().requires_grad_()
    (grad,) = torch.autograd.grad(tileformer.flash_attention(q, KV, KV).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"no second derivative.*SDPBackend.MATH"):
        grad.sum().backward()


BACKWARD = torch.ops.tileformer.attention_backward
OUT, LSE = torch.ops.tileformer.attention_forward(Q, KV, KV)


@pytest.mark.parametrize(
    "results, message",
    [
        (dict(grad_out=OUT[..., :3]), r"grad_out: got shape .*expected"),
        (dict(grad_out=OUT.double()), "grad_out: got dtype float64, expected float32"),
        (dict(out=OUT[:, :, :2]), "out: got shape"),
        (dict(out=OUT.bfloat16()), "out: got dtype bfloat16"),
        (dict(lse=LSE[..., :2]), "lse: got shape"),
        (dict(lse=LSE.half()), "lse: got dtype float16"),
        (dict(grad_lse=LSE[:, :1]), "grad_lse: got shape"),
        (dict(wanted=32), "wanted is 32; allowed"),
        (dict(wanted=8), "grad_mask: got"),
        (dict(wanted=16), "grad_sinks: got"),
    ],
)
def test_results_that_do_not_belong_to_the_inputs(results, message):
    given = {**dict(grad_out=OUT, grad_lse=None, out=OUT, lse=LSE, wanted=7), **results}
    with pytest.raises(ValueError, match=message):
        BACKWARD(*given.values(), Q, KV, KV)


@pytest.mark.parametrize("argument", DIFFERENTIABLE)
def test_tangents_are_refused_by_name(argument):
    def call(tensor: torch.Tensor) -> torch.Tensor:
        return tileformer.flash_attention(**{**DIFFERENTIABLE, argument: tensor})

    tensor = DIFFERENTIABLE[argument]
    with pytest.raises(NotImplementedError, match=f"forward-mode.*{argument} carries a tangent"):
        torch.func.jvp(call, (tensor,), (torch.ones_like(tensor),))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_grad_mode_inputs_may_require_grad(context):
    with context():
        out, lse = tileformer.flash_attention(Q.clone().requires_grad_(), KV, KV, return_lse=True)
    assert not out.requires_grad and not lse.requires_grad


def test_what_is_not_a_dense_cpu_tensor_is_refused():
    with pytest.raises(ValueError, match=r"query, key and value.*dense.*CPU"):
        tileformer.flash_attention(Q.to_sparse(), KV, KV)


def test_unknown_isa_is_an_error_everywhere():
    code = """
import torch, tileformer
q = torch.randn(1, 1, 4, 8)
def attempt(f):
    try:
        f()
    except Exception as error:
        print(type(error).__name__, error)
attempt(tileformer.isa)
attempt(lambda: tileformer.flash_attention(q, q, q))
with tileformer.enabled():
    attempt(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q))
"""
    environment = {**os.environ, "TILEFORMER_ISA": "mmx"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    lines = run.stdout.splitlines()
    assert len(lines) == 3 and all("mmx" in line and "portable" in line for line in lines), run.stdout
