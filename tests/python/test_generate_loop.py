"""The generation loop on a tiny random model: tokens, stops, sampling, figures."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tileformer.models.errors import ModelError
from tileformer.models.generation import generate, warm_up
from tileformer.models.sampling import GREEDY, Sampler, Sampling

PROMPT = [5, 7, 11, 13, 17]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        attn_implementation="tileformer",
    )
    return LlamaForCausalLM(config).eval()


def test_greedy_tokens_equal_those_of_transformers(model):
    theirs = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    ours = generate(model, PROMPT, max_new_tokens=30)
    assert ours.tokens == theirs[0, len(PROMPT) :].tolist()


def test_every_attention_gives_the_same_tokens(model):
    tokens = []
    try:
        for attention in ("tileformer", "sdpa", "eager"):
            model.set_attn_implementation(attention)
            tokens.append(generate(model, PROMPT, max_new_tokens=30).tokens)
    finally:
        model.set_attn_implementation("tileformer")
    assert tokens[0] == tokens[1] == tokens[2]


def test_the_figures_count_prefill_and_each_decode_step(model):
    result = generate(model, PROMPT, max_new_tokens=8)
    assert (result.prompt_tokens, len(result.tokens), len(result.decode_seconds)) == (5, 8, 7)
    assert result.prefill_seconds > 0 and min(result.decode_seconds) > 0
    assert result.prefill_speed == 5 / result.prefill_seconds
    assert result.decode_speed == pytest.approx(7 / sum(result.decode_seconds))


def test_one_token_has_no_decode_step(model):
    result = generate(model, PROMPT, max_new_tokens=1)
    assert len(result.tokens) == 1 and result.decode_seconds == [] and result.decode_speed == 0


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(model):
    free = generate(model, PROMPT, max_new_tokens=20).tokens
    stop = free[6]
    result = generate(model, PROMPT, max_new_tokens=20, stop_tokens=[stop])
    assert result.tokens == free[: free.index(stop)]
    assert len(result.decode_seconds) == len(result.tokens)  # the step that gave the stop token counts


def test_the_end_of_the_context_ends_the_answer(model):
    prompt = list(range(60))
    assert len(generate(model, prompt, max_new_tokens=100).tokens) == 4


@pytest.mark.parametrize(
    "prompt, message", [([], "empty"), ([1] * 64, "64 tokens, the model's context holds 64")]
)
def test_a_prompt_that_does_not_fit_is_an_error(model, prompt, message):
    with pytest.raises(ModelError, match=message):
        generate(model, prompt, max_new_tokens=1)


def test_tokens_are_handed_out_as_they_come(model):
    seen = []
    result = generate(model, PROMPT, max_new_tokens=10, on_token=seen.append)
    assert seen == result.tokens


def test_an_interrupt_keeps_what_there_is(model):
    seen = []

    def interrupt(token: int) -> None:
        seen.append(token)
        if len(seen) == 3:
            raise KeyboardInterrupt

    result = generate(model, PROMPT, max_new_tokens=10, on_token=interrupt)
    assert result.interrupted and result.tokens == seen and len(result.decode_seconds) == 2


def test_warming_up_changes_nothing(model):
    before = generate(model, PROMPT, max_new_tokens=5).tokens
    warm_up(model)
    assert generate(model, PROMPT, max_new_tokens=5).tokens == before


def draws(sampling: Sampling, logits: torch.Tensor, count: int = 2000) -> torch.Tensor:
    sampler = Sampler(sampling)
    return torch.tensor([sampler(logits) for _ in range(count)])


LOGITS = torch.log(torch.tensor([0.1, 0.5, 0.15, 0.25]))


def test_greedy_takes_the_most_likely():
    assert set(draws(GREEDY, LOGITS, 20).tolist()) == {1}


def test_a_seed_repeats_a_sample():
    sampling = Sampling(temperature=1.0, seed=3)
    assert torch.equal(draws(sampling, LOGITS), draws(sampling, LOGITS))
    assert not torch.equal(draws(sampling, LOGITS), draws(Sampling(temperature=1.0, seed=4), LOGITS))


@pytest.mark.parametrize(
    "temperature, top_p, expected",
    [
        (1.0, 1.0, [0.1, 0.5, 0.15, 0.25]),
        (1.0, 0.74, [0, 2 / 3, 0, 1 / 3]),
        (1.0, 0.4, [0, 1, 0, 0]),
        (0.5, 1.0, [0.01 / 0.345, 0.25 / 0.345, 0.0225 / 0.345, 0.0625 / 0.345]),
    ],
)
def test_samples_follow_the_distribution(temperature, top_p, expected):
    counts = torch.bincount(draws(Sampling(temperature, top_p, seed=0), LOGITS, 8000), minlength=4) / 8000
    assert counts.tolist() == pytest.approx(expected, abs=0.02)
    assert all(count == 0 for count, share in zip(counts.tolist(), expected) if share == 0)
