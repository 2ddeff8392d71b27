"""The benchmark suite `training`: its cases, what it leaves out, and its bars."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import cli, training_suite
from tileformer.training.compare import Contender
from tileformer.training.settings import Settings

pytestmark = pytest.mark.slow


def point(contender: str, speed: float, memory: float, losses: list[float], failure: str = "") -> dict:
    settings = Settings(model="smollm2-random", layers=2, dtype="float32", sequence_length=2048, threads=2)
    return {
        "contender": contender,
        "settings": settings.to_json(),
        "tokens_per_second": speed,
        "peak_rss_mib": memory,
        "losses": losses,
        "failure": failure,
    }


POINTS = [
    point("eager", 0, 0, [], "died of SIGKILL in a step (out of memory?)"),
    point("sdpa", 100.0, 2000.0, [10.0, 9.0]),
    point("tileformer", 150.0, 1000.0, [10.0, 9.0001]),
    point("tileformer+fused", 90.0, 500.0, [10.0, 9.5]),
]


def test_it_runs_only_by_its_name():
    assert "training" not in cli.resolve([]) and cli.resolve(["training"]) == ["training"]
    assert cli.resolve(["training", "gqa"]) == ["gqa", "training"]


def test_cases_and_their_layers(tmp_path):
    default = training_suite.cases(False, None, tmp_path)
    assert [(case.sequence_length, case.layers) for case in default] == [(2048, 2), (4096, 2), (8192, 2)]
    assert all(case.text is None for case in default)
    full = training_suite.cases(True, None, tmp_path)
    assert [case.layers for case in full] == [30] * 6 and Path(full[-1].text).stat().st_size > 1 << 20
    assert training_suite.cases(False, 7, tmp_path)[0].layers == 7
    resolved = full[-1].resolve()
    assert (resolved.hidden, resolved.heads, resolved.kv_heads, resolved.intermediate) == (576, 9, 3, 1536)


def test_eager_is_left_out_where_it_would_take_too_much(tmp_path):
    notes: list[str] = []
    case = training_suite.cases(True, None, tmp_path)[2].resolve()
    assert training_suite.fits(case, Contender("sdpa", False), notes) and not notes
    assert not training_suite.fits(case, Contender("eager", False), notes)
    assert notes == ["training: eager not started at 8192 tokens: about 76 GiB"]


def test_lines_and_bars():
    lines = training_suite.lines_of(POINTS)
    assert lines[0] == "2048 tokens, packed, 2 layers, float32, 2 threads"
    assert lines[1].split(maxsplit=1) == ["eager", POINTS[0]["failure"]]
    assert lines[3].endswith("1.50x sdpa's speed, 0.50x its memory, loss 9.0001")
    passed = {verdict.what: verdict.passed for verdict in training_suite.judge(POINTS)}
    assert passed == {
        "tileformer at 2048: times sdpa's tokens/s": True,
        "tileformer at 2048: times sdpa's peak memory": True,
        "tileformer at 2048: loss difference from sdpa": True,
        "tileformer+fused at 2048: times sdpa's tokens/s": False,
        "tileformer+fused at 2048: times sdpa's peak memory": True,
        "tileformer+fused at 2048: loss difference from sdpa": False,
    }
    assert not training_suite.judge(POINTS[2:])  # nobody to compare with
