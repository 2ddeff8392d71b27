"""The real model: in fp32 our attention gives the greedy tokens of transformers' eager attention."""

from collections.abc import Iterator

import pytest
import torch

import tileformer
from tileformer.models.conversion_cache import ConversionCache
from tileformer.models.generation import encode_prompt, generate
from tileformer.models.gguf import convert_gguf
from tileformer.models.loading import LoadedModel, import_libraries, load_model
from tileformer.models.source import find_model

PROMPTS = [
    "Explain in two sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "List the planets of the solar system with one fact about each, then say which is the largest.",
]
NEW_TOKENS = 128

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LoadedModel]:
    import_libraries()
    folder = ConversionCache(find_model(None).path).make(convert_gguf)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # beside other test workers, OpenMP threads wait for each other in a loop
    yield load_model(folder, torch.float32, "eager")
    torch.set_num_threads(threads)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_equal_those_of_eager_attention(smollm2, prompt):
    tokens = encode_prompt(smollm2.tokenizer, prompt)
    answers = []
    for attention in ("eager", "tileformer"):
        smollm2.model.set_attn_implementation(attention)
        # No stop token: the comparison goes on past the end of a short answer.
        answers.append(generate(smollm2.model, tokens, max_new_tokens=NEW_TOKENS).tokens)
    cache = tileformer.PagedKVCache.for_model(smollm2.model, max_tokens=len(tokens) + NEW_TOKENS)
    answers.append(generate(smollm2.model, tokens, max_new_tokens=NEW_TOKENS, cache=cache).tokens)
    assert answers[2] == answers[1] == answers[0]
    assert len(answers[0]) == NEW_TOKENS


def test_the_chat_template_frames_the_prompt(smollm2):
    text = smollm2.tokenizer.decode(encode_prompt(smollm2.tokenizer, "Hello", system="Be brief."))
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
