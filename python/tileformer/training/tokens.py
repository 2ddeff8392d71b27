"""From documents to one stream of tokens, kept in the user's cache folder.

    <cache>/tokens/<key>.npz   tokens: every document and its end token, one after the other
                               starts: where each document begins

The key is made of the documents and the tokenizer, so an entry is never out of date.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tileformer.models.conversion_cache import cache_folder

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerBase

_FORMAT = "1"  # part of every key
_AT_ONCE = 64  # documents per call of the tokenizer, which works on them in parallel


@dataclass(frozen=True)
class TokenStream:
    tokens: np.ndarray  # int32 [tokens]
    starts: np.ndarray  # int64 [documents], ascending, the first 0
    key: str  # of the documents and the tokenizer


def tokenize(documents: list[str], tokenizer: PreTrainedTokenizerBase) -> TokenStream:
    """The stream of the documents, from the cache if it has been made before."""
    key = _key(documents, tokenizer)
    path = cache_folder() / "tokens" / f"{key}.npz"
    stream = _load(path, key)
    if stream is None:
        stream = _tokenize(documents, tokenizer, key)
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time and nothing else
            _store(path, stream)
    return stream


def _tokenize(documents: list[str], tokenizer: PreTrainedTokenizerBase, key: str) -> TokenStream:
    import numpy as np

    end, parts, starts, length = _end_token(tokenizer), [], [], 0
    for first in range(0, len(documents), _AT_ONCE):
        encoded = tokenizer(
            documents[first : first + _AT_ONCE],
            add_special_tokens=False,
            return_attention_mask=False,
            verbose=False,  # a document may be longer than the model's context
        )["input_ids"]
        for tokens in encoded:
            parts.append(np.asarray([*tokens, *end], dtype=np.int32))
            starts.append(length)
            length += len(parts[-1])
    return TokenStream(np.concatenate(parts), np.asarray(starts, dtype=np.int64), key)


def _end_token(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def _key(documents: list[str], tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    digest = hashlib.sha256()
    for part in (_FORMAT, repr(_end_token(tokenizer)), rules, *documents):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:32]


def _load(path: Path, key: str) -> TokenStream | None:
    import numpy as np

    try:
        with np.load(path) as arrays:
            return TokenStream(arrays["tokens"], arrays["starts"], key)
    except Exception:  # absent or torn: numpy and zipfile raise anything
        return None


def _store(path: Path, stream: TokenStream) -> None:
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f"{path.stem}.partial-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, tokens=stream.tokens, starts=stream.starts)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
