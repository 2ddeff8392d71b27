"""tileformer.explain: what would be done for a call, and why, without doing it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tileformer import _C, _experts_ops, _ops, _paged_ops
from tileformer._attend import NONE, TOP_LEFT

_SDPA = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} strides {list(tensor.stride())}"


class _Recorder(TorchDispatchMode):
    """Plans every attention call instead of running it; everything else runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is _ops.inference or func is _ops.forward:
            return self._planned(func, args, kwargs)
        if func is _paged_ops.attention:
            return self._planned_paged(func, args)
        if func is _ops.backward:
            return self._planned_backward(args)
        if func is _experts_ops.inference or func is _experts_ops.forward:
            return self._planned_experts(func, args)
        if func is _experts_ops.backward:
            return self._planned_experts_backward(args)
        if func is _SDPA:
            return self._torch_sdpa(args, kwargs)
        return func(*args, **kwargs)

    def _note(
        self,
        name: str,
        tensors: tuple,
        lines: str,
        names: tuple[str, ...] = ("query", "key", "value", "attn_mask"),
    ) -> None:
        inputs = [f"  {n}: {_describe(t)}" for n, t in zip(names, tensors) if t is not None]
        self.calls.append(
            "\n".join([f"[{len(self.calls) + 1}] {name}", *inputs, *(f"  {x}" for x in lines.splitlines())])
        )

    def _planned(self, func, args, kwargs):
        self._note(func._schema.name, args[:4], _ops.explain(*args))
        query, value = args[0], args[2]
        out = torch.zeros_like(_ops._fake_out(query, args[1], value))
        return (out, query.new_zeros(query.shape[:3], dtype=torch.float32)) if func is _ops.forward else out

    def _planned_paged(self, func, args):
        names = ("query", "key_pages", "value_pages", "block_table", "key_lengths")
        self._note(func._schema.name, args[:5], _paged_ops.explain(*args), names=names)
        return tuple(torch.zeros_like(t) for t in _paged_ops.fake_attention(*args))

    def _planned_backward(self, args):
        names = ("grad_out", "query", "key", "value", "attn_mask")
        self._note(
            _ops.backward._schema.name, (args[0], *args[5:9]), _ops.explain_backward(*args), names=names
        )
        return tuple(torch.zeros_like(t) for t in _ops._fake_backward(*args))

    def _planned_experts(self, func, args):
        names = ("hidden", "gate_up", "down", "weights", "experts")
        text = _experts_ops.explain(*args[: len(_experts_ops.inference._schema.arguments)])
        self._note(func._schema.name, args[:5], text, names=names)
        if func is _experts_ops.inference:
            return torch.zeros_like(_experts_ops.fake_inference(*args))
        return tuple(torch.zeros_like(t) for t in _experts_ops.fake_forward(*args))

    def _planned_experts_backward(self, args):
        names = ("grad_out", "hidden", "gate_up", "down", "weights", "experts")
        text = _experts_ops.explain_backward(*args)
        self._note(_experts_ops.backward._schema.name, (args[0], *args[3:8]), text, names=names)
        return tuple(torch.zeros_like(t) for t in _experts_ops.fake_backward(*args))

    def _torch_sdpa(self, args, kwargs):
        query, key, value, dropout_p, is_causal = (*args, 0.0, False)[:5] if len(args) < 5 else args[:5]
        mask, scale = kwargs.get("attn_mask"), kwargs.get("scale")
        if not _C.sdpa_override():
            text = "torch's own kernel: tileformer is not enabled here (tileformer.enable())"
        elif query.dtype == torch.float64 or dropout_p > 0:
            text = "torch's own kernel: float64 and dropout stay with torch"
        else:
            text = _ops.explain(query, key, value, mask, scale, TOP_LEFT if is_causal else NONE)
        self._note("torch scaled_dot_product_attention", (query, key, value, mask), text)
        lse = query.new_zeros(
            (query.shape[0], query.shape[2], query.shape[1]), dtype=torch.float32
        ).transpose(1, 2)
        return torch.zeros_like(query), lse


def explain(op: Callable, /, *args, **kwargs) -> str:
    """What tileformer would do for op(*args, **kwargs): one paragraph per call of attention or experts,
    with its plan, and one per backward if op computes gradients.

    op is any callable: a function of tileformer, torch's scaled_dot_product_attention, or a whole model.
    These are planned, not computed (their results are zeros); everything else in op runs. A slower path that
    would be taken, and an input that would be copied, is named.

    >>> print(tileformer.explain(tileformer.flash_attention, q, k, v, causal=True))
    """
    recorder = _Recorder()
    with recorder:
        op(*args, **kwargs)
    return "\n".join(recorder.calls) or "no call of attention or experts was made"
