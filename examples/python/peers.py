"""What torch's scaled_dot_product_attention does on the CPU with the cases in the README's table."""

import torch
from torch.nn.attention import SDPBackend

import tileformer


def chosen(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options) -> str:
    """The kernel that torch takes: FLASH_ATTENTION is fused, MATH holds all scores in memory."""
    number = torch._fused_sdp_choice(query, key, value, **options)
    return next(name for name, backend in SDPBackend.__members__.items() if backend.value == number)


q, k, v = (torch.randn(1, 4, 64, 32) for _ in range(3))

print("plain                  ", chosen(q, k, v))
print("grouped kv heads       ", chosen(q, k[:, :2], v[:, :2], enable_gqa=True))
print("dim_v differs          ", chosen(q, k, v[..., :16]))
print("dropout                ", chosen(q, k, v, dropout_p=0.1))

v[0, 0, 63] = torch.nan
visible = torch.ones(64, 64, dtype=torch.bool)
visible[:, 63] = False  # no query sees the last key
for name, attention in (
    ("torch", torch.nn.functional.scaled_dot_product_attention),
    ("tileformer", tileformer.scaled_dot_product_attention),
):
    rows = attention(q, k, v, attn_mask=visible)[0, 0].isnan().any(-1).sum()
    print(f"{name}: a NaN behind the mask reaches {rows} of 64 rows")
