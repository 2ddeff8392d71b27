"""Types of option values for argparse: each refuses what is not allowed, in a sentence."""

import argparse

from tileformer.models.precision import DTYPE_NAMES


def positive_int(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} given, allowed are whole numbers from 1")
    return value


def span(text: str) -> tuple[int, int]:
    """ "16:512", both inclusive, or one number."""
    first, _, last = text.partition(":")
    try:
        low, high = int(first), int(last or first)
    except ValueError:
        low = high = 0
    if not 1 <= low <= high:
        raise argparse.ArgumentTypeError(f"{text!r} given, allowed are FROM:TO or one whole number, from 1")
    return low, high


def whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} given, allowed are whole numbers from 0")
    return value


def non_negative(text: str) -> float:
    value = _number(text)
    if value is None or not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} given, allowed are numbers from 0")
    return value


def temperature(text: str) -> float:
    value = _number(text)
    if value is None or not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} given, allowed are numbers from 0 (greedy) to 100")
    return value


def probability(text: str) -> float:
    value = _number(text)
    if value is None or not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} given, allowed are numbers above 0 and up to 1")
    return value


def dtype(text: str) -> str:
    if text != "auto" and text not in DTYPE_NAMES:
        raise argparse.ArgumentTypeError(f"{text!r} given, allowed are auto, {', '.join(DTYPE_NAMES)}")
    return text


def training_dtype(text: str) -> str:
    # fp16 would need its loss scaled: gradients underflow.
    name = "auto" if text == "auto" else DTYPE_NAMES.get(text)
    if name not in ("auto", "float32", "bfloat16"):
        raise argparse.ArgumentTypeError(f"{text!r} given, allowed are auto, bf16, fp32")
    return name


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def add_precision_and_threads(parser: argparse.ArgumentParser) -> None:
    """--dtype and --threads of the commands that run a model."""
    parser.add_argument(
        "--dtype", type=dtype, default="auto", help="auto (default), float32, bfloat16 or float16"
    )
    parser.add_argument("--threads", type=positive_int, help="threads (default: torch's, the cores)")
