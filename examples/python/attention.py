"""The attention of four model families in one call each, beside torch where torch has it."""

import torch

import tileformer

torch.manual_seed(0)
query = torch.randn(1, 8, 512, 64, dtype=torch.bfloat16)
key, value = (torch.randn(1, 2, 512, 64, dtype=torch.bfloat16) for _ in range(2))

llama = tileformer.flash_attention(query, key, value, causal=True)
mistral = tileformer.flash_attention(query, key, value, causal=True, window=(255, 0))
gemma2 = tileformer.flash_attention(query, key, value, causal=True, softcap=50.0)
gpt_oss = tileformer.flash_attention(query, key, value, causal=True, window=(127, 0), sinks=torch.randn(8))

expected = torch.nn.functional.scaled_dot_product_attention(
    query.double(), key.double(), value.double(), is_causal=True, enable_gqa=True
)
print(f"largest difference from torch in fp64: {(llama.double() - expected).abs().max():.1e}")
print(f"the window changes {(mistral != llama).any(-1).sum()} of {llama[..., 0].numel()} rows")
moved = (gemma2 - llama).abs().max(), (gpt_oss - mistral).abs().max()
print(f"the cap moves a value by up to {moved[0]:.2g}, the sinks and their window by up to {moved[1]:.2g}")
print(tileformer.explain(tileformer.flash_attention, query, key, value, causal=True))
