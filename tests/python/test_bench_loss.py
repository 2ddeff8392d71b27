"""The benchmark's loss suite on a small problem: every contender runs, is checked, and is compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import loss_suite, summary
from bench.loss_case import LossCase, LossInputs

pytestmark = pytest.mark.slow

SMALL = LossCase(rows=70, hidden=16, vocab=500, dtype="bf16")


def test_cases_survive_json():
    for case, _ in loss_suite.cases(True):
        assert LossCase(**json.loads(json.dumps(case.to_json()))) == case
    assert SMALL.flops == 6 * 70 * 16 * 500


def test_points_of_every_contender(monkeypatch):
    peers = ("torch-loss", "torch-loss-fp32")
    monkeypatch.setattr(loss_suite, "cases", lambda full: [(SMALL, peers)])
    notes: list[str] = []
    points = list(loss_suite.run(False, 2, notes))
    assert notes == [] and [p["contender"] for p in points] == [loss_suite.OURS, *peers]
    for point in points:
        assert point["case"]["threads"] == 2 and point["seconds"] > 0
        assert point["ratio"] == pytest.approx(point["seconds"] / points[0]["seconds"])
        assert "70x16x500 bf16" in loss_suite.line_of(point)
    verdicts = loss_suite.judge(points)
    assert len(verdicts) == 4
    bars = [{**v.__dict__, "pass": v.passed} for v in verdicts]
    assert len(list(summary.bars_of({"rows": [], summary.LOSS_SUITE: {"bars": bars}}))) == 4


def test_a_wrong_gradient_is_noticed():
    inputs = LossInputs.of(SMALL.with_(dtype="fp32"))
    gradient = inputs.step(lambda h, w, t: (h @ w.t()).float().logsumexp(1).mean())()
    assert inputs.error_of(gradient) > 0.05
