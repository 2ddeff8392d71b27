"""Turns a stream of tokens into text as early as it is certain."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_INCOMPLETE = "\ufffd"  # what decoding shows for a character whose last bytes are in a token to come


class TextStream:
    """Feeds on tokens one by one and gives out text, whole characters only.

    The text of a token depends on its neighbours (spaces, split UTF-8), so a short window is decoded with and
    without the new tokens, and the difference is what they add.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._told = 0  # tokens of the window whose text is out

    def add(self, token: int) -> str:
        """Returns the text that is certain after ``token``; it may be empty."""
        self._window.append(token)
        before, now = self._decode(self._window[: self._told]), self._decode(self._window)
        if now.endswith(_INCOMPLETE) or len(now) <= len(before):
            return ""
        self._window, self._told = self._window[self._told :], len(self._window) - self._told
        return now[len(before) :]

    def finish(self) -> str:
        """Returns what is left at the end of the stream; a character cut short shows as U+FFFD."""
        before, now = self._decode(self._window[: self._told]), self._decode(self._window)
        self._window, self._told = [], 0
        return now[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
