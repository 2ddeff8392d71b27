"""The custom operators `torch.ops.tileformer.attention_*`: fake kernels, autocast and autograd.

The operators themselves are C++ (`tileformer._C`) and registered when that module is loaded, which importing
this one does. `attention_forward` returns `(out, lse)`; `attention_inference` returns `out` alone and has no
autograd formula, because the formula costs some 5 us per call even where no gradient is wanted;
`attention_explain` returns the plan as text. All three take the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tileformer import _C  # noqa: F401  (registers the operators)

forward = torch.ops.tileformer.attention_forward.default
inference = torch.ops.tileformer.attention_inference.default
_explain = torch.ops.tileformer.attention_explain.default

NO_BACKWARD = (
    "tileformer has no attention backward yet, but {names} requires grad and grad mode is on. Run the call "
    "under torch.no_grad() or torch.inference_mode(), detach the inputs, or train with torch's own "
    "scaled_dot_product_attention (attn_implementation='sdpa' in transformers)."
)

NO_FORWARD_MODE = (
    "tileformer has no forward-mode derivative (jvp) of attention, but {name} carries a tangent. Detach the "
    "inputs, or use torch's own scaled_dot_product_attention with the math backend."
)


def explain(*arguments) -> str:
    """The plan of a call with these arguments of the operator, and the slower paths that it takes."""
    return bytes(_explain(*arguments).tolist()).decode()


def _empty_like_layout(sizes: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Dense tensor of `sizes` [batch, heads, seq, dim] with the dimensions in the memory order of `like`.

    Says for fake tensors what `empty_like_layout` in csrc/torch_tensor.cpp says for real ones.
    """
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


def _fake_out(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} dimensions; needed are 4, [batch, heads, seq, dim]")
    return _empty_like_layout((query.shape[0], query.shape[1], query.shape[2], value.shape[3]), query)


@torch.library.register_fake("tileformer::attention_inference")
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_options) -> torch.Tensor:
    return _fake_out(query, key, value)


@torch.library.register_fake("tileformer::attention_forward")
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_options
) -> tuple[torch.Tensor, torch.Tensor]:
    out = _fake_out(query, key, value)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return out, query.new_empty(query.shape[:3], dtype=dtype)


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


def _refuse_autograd(ctx, inputs: tuple, output: tuple) -> None:
    names = [argument.name for argument in forward._schema.arguments]
    wanted = [n for n, t in zip(names, inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    raise NotImplementedError(NO_BACKWARD.format(names=", ".join(wanted) or "an input"))


def _no_backward(ctx, *grads):
    raise NotImplementedError(NO_BACKWARD.format(names="an input"))


torch.library.register_autograd("tileformer::attention_forward", _no_backward, setup_context=_refuse_autograd)
