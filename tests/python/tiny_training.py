"""A text, a tokenizer and options so small that a step of training takes milliseconds."""

from __future__ import annotations

from pathlib import Path

from tiny_model import write_tiny_gguf

TEXTS = [
    "the quick brown fox jumps over the lazy dog. " * 6,
    "to be or not to be, that is the question. " * 3,
    "short",
    "all that glitters is not gold; often have you heard that told. " * 5,
]


def write_inputs(folder: Path) -> tuple[str, str]:
    """Writes a GGUF model, which lends its tokenizer, and a folder of texts; returns both."""
    text = folder / "text"
    text.mkdir(parents=True)
    for i, document in enumerate(TEXTS):
        (text / f"{i}.txt").write_text(document)
    return str(write_tiny_gguf(folder / "tiny.gguf")), str(text)


def options(inputs: tuple[str, str], **changes: object) -> list[str]:
    """The options of a tiny run, as the command line takes them."""
    values = {
        "tokenizer": inputs[0],
        "text": inputs[1],
        "layers": 2,
        "hidden": 32,
        "heads": 4,
        "kv-heads": 2,
        "sequence-length": 32,
        "batch-size": 2,
        "threads": 1,
        "dtype": "fp32",
        **changes,
    }
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]
