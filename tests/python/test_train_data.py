"""Documents, their tokens, and rows packed from them, against a straightforward reference."""

import numpy as np
import pytest
import torch

from tileformer.training import tokens as tokens_module
from tileformer.training.errors import TrainingError
from tileformer.training.packing import IGNORED, PackedRows
from tileformer.training.text import read_documents, standard_library
from tileformer.training.tokens import TokenStream, tokenize


def stream_of(*lengths: int) -> TokenStream:
    """Documents of these lengths; token i of the stream is 1000 + i."""
    starts = np.cumsum([0, *lengths[:-1]])
    return TokenStream(np.arange(1000, 1000 + sum(lengths), dtype=np.int32), starts, "key")


def reference_rows(stream: TokenStream, length: int) -> list[tuple[list[int], list[int], list[int]]]:
    """(tokens, positions, labels) of every row, token by token."""
    rows = []
    for row in range(len(stream.tokens) // length):
        tokens, positions, labels = [], [], []
        for place in range(row * length, (row + 1) * length):
            first = place == row * length or place in stream.starts
            tokens.append(int(stream.tokens[place]))
            positions.append(0 if first else positions[-1] + 1)
            labels.append(IGNORED if first else tokens[-1])
        rows.append((tokens, positions, labels))
    return rows


@pytest.mark.parametrize("length", [2, 3, 8, 40])
@pytest.mark.parametrize("lengths", [(40,), (1, 1, 1, 37), (8, 8, 24), (3, 10, 1, 26), (7, 40, 11)])
def test_rows_are_those_of_the_reference(lengths, length):
    stream = stream_of(*lengths)
    expected = {tuple(tokens): rest for tokens, *rest in reference_rows(stream, length)}
    rows = PackedRows(stream, length, batch_size=1, seed=3)
    assert rows.count == len(expected)
    for step in range(rows.count):
        batch = rows.batch(step)
        assert batch.input_ids.shape == batch.position_ids.shape == batch.labels.shape == (1, length)
        found = [batch.position_ids[0].tolist(), batch.labels[0].tolist()]
        assert found == expected.pop(tuple(batch.input_ids[0].tolist()))
    assert not expected  # each row once


def test_the_order_depends_on_seed_and_step_only():
    stream = stream_of(*[10] * 13)
    rows = PackedRows(stream, 5, batch_size=3, seed=1)
    forwards = [rows.batch(step).input_ids for step in range(30)]
    backwards = [rows.batch(step).input_ids for step in reversed(range(30))]
    assert all(torch.equal(a, b) for a, b in zip(forwards, reversed(backwards)))
    firsts = [int(row[0]) for batch in forwards for row in batch]
    epochs = [firsts[i : i + rows.count] for i in (0, rows.count)]
    assert len(set(epochs[0])) == len(set(epochs[1])) == rows.count and epochs[0] != epochs[1]
    other = PackedRows(stream, 5, batch_size=3, seed=2)
    assert not torch.equal(other.batch(0).input_ids, forwards[0])


def test_too_little_text_for_a_row():
    with pytest.raises(TrainingError, match="12 tokens, fewer than one row of --sequence-length 16"):
        PackedRows(stream_of(5, 7), 16, batch_size=1, seed=0)


def test_the_standard_library_is_a_text_without_tests_and_packages():
    documents = standard_library()
    assert len(documents) > 300
    assert any("class JSONEncoder" in document for document in documents)
    assert not any(document.startswith('"""Unit tests for') for document in documents)
    assert documents == standard_library()


def test_a_folder_gives_its_texts_in_order(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "b" / "c.txt").write_text("third ü")
    (tmp_path / "a.txt").write_text("second")
    (tmp_path / "1.md").write_text("first")
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / ".git" / "config").write_text("no")
    (tmp_path / "image").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "latin").write_bytes(b"\xfc")
    assert read_documents(str(tmp_path)) == ["first", "second", "third ü"]
    assert read_documents(str(tmp_path / "a.txt")) == ["second"]


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "blank.txt").write_text(" \n")
    for name, message in (
        ("absent", "no such file or folder"),
        ("empty", "holds no text"),
        ("blank.txt", "holds no text"),
        ("latin.txt", "not UTF-8 text: .* at byte 3"),
    ):
        with pytest.raises(TrainingError, match=message):
            read_documents(str(tmp_path / name))


class Letters:
    """A tokenizer of one token per character."""

    backend_tokenizer = None
    eos_token_id = 0

    def get_vocab(self) -> dict[str, int]:
        return {"a": ord("a")}

    def __call__(self, documents: list[str], **options) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(letter) for letter in document] for document in documents]}


def test_tokens_end_each_document_and_come_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    documents = ["ab", "", "c"] * 50
    stream = tokenize(documents, Letters())
    assert stream.tokens.tolist() == [97, 98, 0, 0, 99, 0] * 50
    assert stream.starts.tolist()[:4] == [0, 3, 4, 6]
    (entry,) = (tmp_path / "tileformer" / "tokens").iterdir()

    monkeypatch.setattr(tokens_module, "_tokenize", None)  # would fail
    again = tokenize(documents, Letters())
    assert np.array_equal(again.tokens, stream.tokens) and again.key == stream.key
    monkeypatch.undo()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entry.write_bytes(entry.read_bytes()[:50])  # torn
    assert np.array_equal(tokenize(documents, Letters()).tokens, stream.tokens)
    assert tokenize(["ab", "c", ""], Letters()).key != stream.key
