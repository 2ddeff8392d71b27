"""The custom operators `torch.ops.tileformer.attention_*`: fake kernels, autocast and autograd.

The operators themselves are C++ (`tileformer._C`) and registered when that module is loaded, which importing
this one does. `attention_forward` returns `(out, lse)` and is differentiable: `attention_backward` takes
these, the gradients that arrive at them and the same arguments; `attention_inference` returns `out` alone and
has no autograd formula, because the formula costs some 5 us per call even where no gradient is wanted;
`attention_explain` returns the plan as text. All take the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tileformer import _C  # noqa: F401  (registers the operators)

forward = torch.ops.tileformer.attention_forward.default
backward = torch.ops.tileformer.attention_backward.default
inference = torch.ops.tileformer.attention_inference.default
_explain = torch.ops.tileformer.attention_explain.default
_explain_backward = torch.ops.tileformer.attention_backward_explain.default

NO_DOUBLE_BACKWARD = (
    "tileformer's attention has no second derivative: its gradients come from one fused pass that keeps no "
    "probabilities. Where gradients of gradients are needed, use torch's scaled_dot_product_attention under "
    "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), or attn_implementation='eager' in "
    "transformers."
)

NO_SLOPE_GRADIENT = (
    "alibi_slopes requires grad, but tileformer computes no gradient for it. Detach it, or pass the bias as "
    "a float attn_mask, which has one."
)

NO_FORWARD_MODE = (
    "tileformer has no forward-mode derivative (jvp) of attention, but {name} carries a tangent. Detach the "
    "inputs, or use torch's own scaled_dot_product_attention with the math backend."
)


def explain(*arguments) -> str:
    """The plan of a call with these arguments of the operator, and the slower paths that it takes."""
    return bytes(_explain(*arguments).tolist()).decode()


def explain_backward(*arguments) -> str:
    """The same of the backward operator."""
    return bytes(_explain_backward(*arguments).tolist()).decode()


def _empty_like_layout(sizes: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Dense tensor of `sizes` [batch, heads, seq, dim] with the dimensions in the memory order of `like`.

    Says for fake tensors what `empty_like_layout` in csrc/torch_tensor.cpp says for real ones. One whose rows
    are not adjacent in memory is copied first, and then is dense in the order of its dimensions.
    """
    if like.stride(-1) != 1 and like.shape[-1] > 1:
        return like.new_empty(sizes)
    order = [2, 1, 0]
    stride = like.stride()
    for i in (1, 2):
        for j in range(i, 0, -1):
            inner, outer = stride[order[j - 1]], stride[order[j]]
            if inner == 0 or outer == 0 or inner <= outer:
                break
            order[j - 1], order[j] = order[j], order[j - 1]
    dense, step = [0, 0, 0, 0], 1
    for d in (3, *order):
        dense[d] = step
        step = step * (sizes[d] if sizes[d] != 0 else 1)
    return like.new_empty_strided(sizes, dense)


def _check_devices(like: torch.Tensor, *others) -> None:
    # With a tensor on meta among them, torch would take the fake kernel, and its memory for results.
    for other in others:
        if isinstance(other, torch.Tensor) and other.device != like.device:
            devices = f"{like.device} and {other.device}"
            raise ValueError(f"all tensors have to be dense and on the CPU; they are on {devices}")


def _fake_out(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *options) -> torch.Tensor:
    _check_devices(query, key, value, *options)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} dimensions; needed are 4, [batch, heads, seq, dim]")
    return _empty_like_layout((query.shape[0], query.shape[1], query.shape[2], value.shape[3]), query)


@torch.library.register_fake("tileformer::attention_inference")
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *options) -> torch.Tensor:
    return _fake_out(query, key, value, *options)


@torch.library.register_fake("tileformer::attention_forward")
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *options
) -> tuple[torch.Tensor, torch.Tensor]:
    out = _fake_out(query, key, value, *options)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return out, query.new_empty(query.shape[:3], dtype=dtype)


@torch.library.register_fake("tileformer::attention_backward")
def _fake_backward(
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    wanted: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
    causal: int = 0,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    *options,
) -> tuple[torch.Tensor, ...]:
    _check_devices(query, key, value, grad_out, grad_lse, out, lse, attn_mask, sinks, *options)

    def gradient(n: int, like: torch.Tensor) -> torch.Tensor:
        return _empty_like_layout(like.shape, like) if wanted >> n & 1 else like.new_empty(0)

    mask = [1] * (4 - attn_mask.dim()) + list(attn_mask.shape) if wanted & 8 and attn_mask is not None else 0
    return (
        gradient(0, query),
        gradient(1, key),
        gradient(2, value),
        lse.new_empty(mask),
        lse.new_empty(sinks.shape if wanted & 16 and sinks is not None else 0),
    )


_AUTOCAST = torch._C.DispatchKey.AutocastCPU


def _autocast_rule(op: Callable) -> Callable:
    """Casts query, key and value to the autocast dtype; the other arguments may have any float dtype."""

    def to_autocast(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() and tensor.dtype != torch.float64:
            return tensor.to(torch.get_autocast_dtype("cpu"))
        return tensor

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *options):
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AUTOCAST)):
            return op(to_autocast(query), to_autocast(key), to_autocast(value), *options)

    return kernel


_library = torch.library.Library("tileformer", "IMPL")
for _op in (forward, inference, _explain):
    _library.impl(_op._schema.name.removeprefix("tileformer::"), _autocast_rule(_op), "AutocastCPU")


_NAMES = [argument.name for argument in forward._schema.arguments]
_DIFFERENTIABLE = [_NAMES.index(name) for name in ("query", "key", "value", "attn_mask", "sinks")]


def _save_for_backward(ctx, inputs: tuple, output: tuple) -> None:
    # torch passes no trailing arguments that have their default value.
    inputs = (*inputs, *(argument.default_value for argument in forward._schema.arguments[len(inputs) :]))
    if isinstance(slopes := inputs[_NAMES.index("alibi_slopes")], torch.Tensor) and slopes.requires_grad:
        raise NotImplementedError(NO_SLOPE_GRADIENT)
    ctx.set_materialize_grads(False)
    tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    ctx.tensor_arguments = tensors
    ctx.other_arguments = tuple(None if i in tensors else x for i, x in enumerate(inputs))
    ctx.save_for_backward(*output, *(inputs[i] for i in tensors))


def _backward(ctx, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None):
    out, lse, *tensors = ctx.saved_tensors
    arguments = list(ctx.other_arguments)
    for i, tensor in zip(ctx.tensor_arguments, tensors):
        arguments[i] = tensor
    needed = ctx.needs_input_grad  # of the arguments that were passed
    wanted = sum(1 << n for n, i in enumerate(_DIFFERENTIABLE) if i < len(needed) and needed[i])
    grads: list[torch.Tensor | None] = [None] * len(needed)
    if wanted and not (grad_out is None and grad_lse is None):
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        computed = backward(grad_out, grad_lse, out, lse, wanted, *arguments)
        for n, i in enumerate(_DIFFERENTIABLE):
            if wanted >> n & 1:
                like = arguments[i]
                grads[i] = computed[n].reshape(like.shape).to(like.dtype) if n > 2 else computed[n]
    return tuple(grads)


def _refuse_double_backward(ctx, *grads):
    raise NotImplementedError(NO_DOUBLE_BACKWARD)


torch.library.register_autograd("tileformer::attention_forward", _backward, setup_context=_save_for_backward)
torch.library.register_autograd("tileformer::attention_backward", _refuse_double_backward)
