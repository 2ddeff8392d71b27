"""The benchmark suite `serving`: its cases, its points, and its bars."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import cli, serving_suite
from bench.serving_suite import OURS, PEER, Case

pytestmark = pytest.mark.slow


def test_it_runs_only_by_its_name():
    assert "serving" not in cli.resolve([]) and cli.resolve(["serving"]) == ["serving"]


def test_a_small_case_and_one_that_is_shared():
    small = [Case(2, 70, 1, layers=1), Case(8, 128, 1, layers=1, shared=True)]
    notes: list[str] = []
    alone, shared = serving_suite.run(small, 1, notes)
    assert notes == [] and [point["contender"] for point in alone] == [OURS, PEER]
    for points in (alone, shared):
        assert all(point["tokens_per_second"] > 0 for point in points)
        assert points[0]["logits_difference"] < serving_suite.LOGITS_TOLERANCE[points[0]["dtype"]]
    assert alone[0]["pages"] == alone[0]["pages_alone"] == 4
    assert shared[0]["pages"] == 2 + 8 and shared[0]["pages_alone"] == 24
    assert "10 pages instead of 24" in "\n".join(serving_suite.lines_of(shared))


def test_what_does_not_fit_is_left_out_and_noted(monkeypatch):
    monkeypatch.setattr(serving_suite, "available_bytes", lambda: 1 << 20)
    notes: list[str] = []
    assert list(serving_suite.run([Case(32, 8192, 1)], None, notes)) == []
    assert "32 x 8192 not started" in notes[0]


def test_the_bars():
    point = dict(
        batch=32,
        context=2048,
        shared=True,
        dtype="float32",
        logits_difference=1e-5,
        pages=64,
        pages_alone=1056,
    )
    ours, peer = dict(point, tokens_per_second=150.0), dict(point, tokens_per_second=100.0)
    assert all(verdict.passed for verdict in serving_suite.judge([ours, peer]))
    slow = serving_suite.judge([dict(ours, tokens_per_second=90.0, pages=1056, logits_difference=0.1), peer])
    assert not any(verdict.passed for verdict in slow) and len(slow) == 3
