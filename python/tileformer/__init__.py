"""tileformer: transformer operators for CPUs.

    import tileformer
    out = tileformer.flash_attention(query, key, value, causal=True)  # [batch, heads, seq, dim]

    with tileformer.enabled():  # torch's own function, carried out here
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value)

    model.set_attn_implementation("tileformer")  # Hugging Face transformers

    cache = tileformer.PagedKVCache(...)  # keys and values in pages: decode, batches that change

The operators are torch.ops.tileformer.*: they work under torch.compile(fullgraph=True), torch.export and
autocast, and run on torch's own threads (torch.set_num_threads).
"""

import torch  # noqa: F401  (loads the libraries that tileformer._C links)

from tileformer._C import __version__
from tileformer.attention import flash_attention
from tileformer.config import isa, show_config
from tileformer.cross_entropy import linear_cross_entropy
from tileformer.explain import explain
from tileformer.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from tileformer.flash_attn_kvcache import flash_attn_with_kvcache
from tileformer.fused_experts import fused_experts
from tileformer.grouped_matmul import grouped_matmul
from tileformer.integrations import register_with_transformers as _register_with_transformers
from tileformer.kv_cache import CacheFull, PagedKVCache
from tileformer.kv_step import Rotary
from tileformer.merge_attention import merge_attention_states
from tileformer.packed_experts import PackedExperts, pack_experts
from tileformer.paged_attention import apply_rotary, paged_attention
from tileformer.permutation import permute_tokens, unpermute_tokens
from tileformer.router_losses import load_balancing_loss, router_z_loss
from tileformer.routing import route
from tileformer.sdpa import disable, enable, enabled, scaled_dot_product_attention

_register_with_transformers()

__all__ = [
    "CacheFull",
    "PackedExperts",
    "PagedKVCache",
    "Rotary",
    "__version__",
    "apply_rotary",
    "disable",
    "enable",
    "enabled",
    "explain",
    "flash_attention",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "fused_experts",
    "grouped_matmul",
    "isa",
    "linear_cross_entropy",
    "load_balancing_loss",
    "merge_attention_states",
    "pack_experts",
    "paged_attention",
    "permute_tokens",
    "route",
    "router_z_loss",
    "scaled_dot_product_attention",
    "show_config",
    "unpermute_tokens",
]
