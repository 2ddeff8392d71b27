"""Weights of experts, made ready once: in the plain layout, and quantised if wanted."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_GROUPS = (32, 64, 128)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class PackedExperts:
    """What pack_experts returns; tileformer.fused_experts takes it in place of gate_up, with down=None.

    gate_up [experts, 2 * inter, hidden], gates first, and down [experts, hidden, inter]: floats, or int8
    codes, or uint8 with two int4 codes to a byte (element 2 i of a row in the low half of byte i; their last
    dimension is half as long). An element of codes is code * scale, the scales being float32: [experts, rows]
    of int8, [experts, rows, columns / group] of int4. Biases [experts, rows] in the order of the rows.
    """

    gate_up: torch.Tensor
    down: torch.Tensor
    gate_up_scale: torch.Tensor | None = None
    down_scale: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None

    @property
    def quantized(self) -> bool:
        return self.gate_up_scale is not None

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in vars(self).values() if t is not None)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
        """(gate_up, down) as the numbers that the codes stand for."""
        return tuple(
            _numbers(codes, scale).to(dtype)
            for codes, scale in ((self.gate_up, self.gate_up_scale), (self.down, self.down_scale))
        )


def _numbers(codes: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    if scale is None:
        return codes
    if codes.dtype == torch.int8:
        return codes.float() * scale[..., None]
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).to(torch.int8)
    signed = torch.where(nibbles > 7, nibbles - 16, nibbles).float()
    return (signed.unflatten(-1, (scale.shape[-1], -1)) * scale[..., None]).flatten(-2)


def _codes(x: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers of -largest..largest and their scales, symmetric along the last dimension."""
    scale = x.abs().amax(dim=-1) / largest
    codes = torch.where(scale[..., None] > 0, x / scale[..., None], 0).round().clamp(-largest, largest)
    return codes.to(torch.int8), scale


def _int8(weight: torch.Tensor, _name: str, _group: int) -> tuple[torch.Tensor, torch.Tensor]:
    # One expert at a time: no fp32 copy of all of them.
    codes, scales = zip(*(_codes(expert.float(), 127) for expert in weight))
    return torch.stack(codes), torch.stack(scales)


def _int4(weight: torch.Tensor, name: str, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    if weight.shape[-1] % group:
        raise ValueError(
            f"group: got {group}, expected a divisor of the {weight.shape[-1]} columns of {name}: one of "
            "32, 64, 128"
        )

    def pack(expert: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scale = _codes(expert.float().unflatten(-1, (-1, group)), 7)
        nibbles = (codes.flatten(-2) & 15).to(torch.uint8)
        return nibbles[..., ::2] | nibbles[..., 1::2] << 4, scale

    codes, scales = zip(*(pack(expert) for expert in weight))
    return torch.stack(codes), torch.stack(scales)


_QUANTIZERS = {"int8": _int8, "int4": _int4}


def pack_experts(
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    interleaved: bool = False,
    quantize: str | None = None,
    group: int = 64,
) -> PackedExperts:
    """Weights for tileformer.fused_experts in the layout that it reads fastest, quantised if wanted.

    Args:
        gate_up: [experts, 2 * inter, hidden], float32, bfloat16, float16 or float64, any strides (pass
            [experts, hidden, 2 * inter] storage as gate_up.transpose(1, 2)).
        down: [experts, hidden, inter], dtype of gate_up, any strides.
        gate_up_bias, down_bias: [experts, 2 * inter] and [experts, hidden], float.
        interleaved: rows of gate_up and of its bias are gate, up, gate, up, ...; they become gates first.
        quantize: None, "int8" (symmetric, one scale per row), or "int4" (symmetric, one scale per group of
            neighbours in a row; group has to divide hidden and inter). The same number in every call:
            nothing is calibrated.
        group: 32, 64 or 128, of int4.

    The weights may be parameters: without quantize, gradients reach them through the copy; codes have none.

    Raises:
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
    """
    if quantize is not None and quantize not in _QUANTIZERS:
        raise ValueError(f"quantize: got {quantize!r}, expected None, 'int8' or 'int4'")
    if group not in _GROUPS:
        raise ValueError(f"group: got {group}, expected 32, 64 or 128")
    for name, weight, layout in (
        ("gate_up", gate_up, "[experts, 2 * inter, hidden]"),
        ("down", down, "[experts, hidden, inter]"),
    ):
        if weight.dim() != 3 or weight.dtype not in _DTYPES:
            given = f"{weight.dtype} {list(weight.shape)}"
            raise ValueError(
                f"{name}: got {given}, expected {layout} of float32, bfloat16, float16 or float64"
            )
    if gate_up.shape[1] % 2 or tuple(down.shape) != (
        gate_up.shape[0],
        gate_up.shape[2],
        gate_up.shape[1] // 2,
    ):
        expected = [gate_up.shape[0], gate_up.shape[2], gate_up.shape[1] // 2]
        raise ValueError(
            f"down: got {list(down.shape)}, expected {expected} beside gate_up {list(gate_up.shape)}"
        )
    if interleaved:
        gate_up = torch.cat((gate_up[:, ::2], gate_up[:, 1::2]), dim=1)
        if gate_up_bias is not None:
            gate_up_bias = torch.cat((gate_up_bias[:, ::2], gate_up_bias[:, 1::2]), dim=1)
    if quantize is None:
        return PackedExperts(gate_up.contiguous(), down.contiguous(), None, None, gate_up_bias, down_bias)
    with torch.no_grad():
        quantizer = _QUANTIZERS[quantize]
        up_codes, up_scale = quantizer(gate_up, "gate_up", group)
        down_codes, down_scale = quantizer(down, "down", group)
    return PackedExperts(up_codes, down_codes, up_scale, down_scale, gate_up_bias, down_bias)
