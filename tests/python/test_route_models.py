"""route is the router of the models that it names: transformers' own modules, with random weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tileformer import route

pytest.importorskip("transformers")


def module_of(name: str, dtype: torch.dtype) -> tuple[torch.nn.Module, dict]:
    """The router of a model, and the arguments of route that it stands for."""
    torch.manual_seed(0)
    if name == "mixtral":
        from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralTopKRouter

        config = MixtralConfig(hidden_size=32, num_local_experts=8, num_experts_per_tok=2)
        router, options = MixtralTopKRouter(config), dict(top_k=2)
    elif name.startswith("qwen3"):
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeTopKRouter

        renormalize = name == "qwen3_renormalized"
        config = Qwen3MoeConfig(
            hidden_size=32, num_experts=128, num_experts_per_tok=8, norm_topk_prob=renormalize
        )
        router, options = Qwen3MoeTopKRouter(config), dict(top_k=8, renormalize=renormalize)
    elif name.startswith("deepseek"):
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
            DeepseekV3Config,
            DeepseekV3TopkRouter,
        )

        renormalize = name == "deepseek_renormalized"
        config = DeepseekV3Config(
            hidden_size=32,
            n_routed_experts=64,
            num_experts_per_tok=6,
            n_group=8,
            topk_group=3,
            norm_topk_prob=renormalize,
            routed_scaling_factor=2.5,
        )
        router = DeepseekV3TopkRouter(config)
        router.e_score_correction_bias = torch.nn.Buffer(0.2 * torch.randn(64))
        options = dict(
            top_k=6,
            scoring="sigmoid",
            bias=router.e_score_correction_bias,
            num_groups=8,
            top_groups=3,
            renormalize=renormalize,
            scale=2.5,
        )
    else:
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssTopKRouter

        config = GptOssConfig(hidden_size=32, num_local_experts=32, num_experts_per_tok=4)
        router, options = GptOssTopKRouter(config), dict(top_k=4)
        torch.nn.init.normal_(router.bias)
    torch.nn.init.normal_(router.weight, std=0.3)
    return router.to(dtype), options


NAMES = ["mixtral", "qwen3", "qwen3_renormalized", "deepseek", "deepseek_renormalized", "gpt_oss"]


def dense(weights: torch.Tensor, experts: torch.Tensor, count: int) -> torch.Tensor:
    """[tokens, experts]: the order of the slots, which models leave open, is gone."""
    return torch.zeros(weights.shape[0], count).scatter(1, experts.long(), weights.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_router(name, dtype):
    router, options = module_of(name, dtype)
    hidden = torch.randn(200, 32).to(dtype)
    logits, expected, chosen = router(hidden)
    ours = F.linear(hidden.to(logits.dtype), router.weight.to(logits.dtype), getattr(router, "bias", None))
    assert torch.equal(ours, logits)
    weights, experts = route(ours, **options)
    # Models that choose among rounded probabilities see ties where route sees an order.
    same = (experts.sort(1).values == chosen.sort(1).values).all(1)
    assert same.all() if dtype == torch.float32 else same.float().mean() > 0.9
    count = logits.shape[1]
    mine, theirs = dense(weights, experts, count)[same], dense(expected, chosen, count)[same]
    rounding = 2e-6 if expected.dtype == torch.float32 else 8e-3  # theirs, in bf16
    torch.testing.assert_close(mine, theirs, rtol=rounding, atol=1e-7)

    (gradient,) = torch.autograd.grad(
        dense(weights, experts, count)[same].square().sum(), router.weight, retain_graph=True
    )
    (their_gradient,) = torch.autograd.grad(
        dense(expected, chosen, count)[same].square().sum(), router.weight
    )
    scale = their_gradient.float().abs().max()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert (gradient.float() - their_gradient.float()).abs().max() < tolerance * scale
