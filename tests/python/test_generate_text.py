"""Text comes out of a token stream early, whole, and the same as from all tokens at once."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tileformer.models.text_stream import TextStream

SENTENCES = [
    "Plain words, and  two spaces.",
    "naïve Grüße, 東京 is 日本",
    "emoji 👩🏽‍🚀 in 🇯🇵 several 🎉🎉 tokens",
    "",
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that every character beyond ASCII is split."""
    alphabet = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


@pytest.mark.parametrize("sentence", SENTENCES)
def test_pieces_join_to_the_whole(tokenizer, sentence):
    stream = TextStream(tokenizer)
    pieces = [stream.add(token) for token in tokenizer.encode(sentence)]
    assert "".join(pieces) == sentence
    assert stream.finish() == ""


def test_text_comes_as_soon_as_it_is_certain(tokenizer):
    stream = TextStream(tokenizer)
    pieces = [stream.add(token) for token in tokenizer.encode("aéb")]
    assert pieces == ["a", "", "é", "b"]


def test_a_character_cut_short_shows_at_the_end(tokenizer):
    stream = TextStream(tokenizer)
    tokens = tokenizer.encode("ab🎉")[:-1]
    assert "".join(stream.add(token) for token in tokens) == "ab"
    assert stream.finish() == "�"
    assert stream.finish() == ""


def test_special_tokens_are_silent(tokenizer):
    stream = TextStream(tokenizer)
    assert [stream.add(token) for token in [*tokenizer.encode("a"), tokenizer.eos_token_id]] == ["a", ""]
