"""``tileformer train --model mixtral``: a small model of experts learns, whatever computes its experts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_training
import torch

from tileformer.cli import main
from tileformer.integrations import experts as integration
from tileformer.training.log import read_log

pytestmark = pytest.mark.slow

STEPS = 25


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> tuple[str, str]:
    return tiny_training.write_inputs(tmp_path_factory.mktemp("training"))


@pytest.fixture(autouse=True, scope="module")
def offline(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


def train(inputs, out: Path, *more: str, **changes) -> int:
    options = tiny_training.options(inputs, **{"model": "mixtral", "steps": STEPS, **changes})
    return main(["train", "--out", str(out), *options, "--num-experts", "4", *more])


@pytest.fixture(scope="module")
def runs(inputs, offline, tmp_path_factory) -> dict[str, Path]:
    """The same run with each implementation of experts."""
    folders = {name: tmp_path_factory.mktemp("runs") / name for name in ("tileformer", "grouped_mm", "eager")}
    for name, folder in folders.items():
        assert train(inputs, folder, "--experts", name) == 0
    return folders


def losses(folder: Path) -> torch.Tensor:
    return torch.tensor([record.loss for record in read_log(folder / "log.jsonl")])


def test_it_learns_the_same_with_each(runs):
    exact = losses(runs["eager"])
    assert exact[-1] < 0.8 * exact[0]
    for name in ("tileformer", "grouped_mm"):
        torch.testing.assert_close(losses(runs[name]), exact, rtol=1e-3, atol=1e-3, msg=name)


@pytest.fixture
def calls(monkeypatch):
    """An entry for each layer that fused_experts computes."""
    seen, original = [], integration.fused_experts
    monkeypatch.setattr(integration, "fused_experts", lambda *a, **o: (seen.append(1), original(*a, **o))[1])
    return seen


def test_tileformer_is_the_default_and_is_named_in_the_report(inputs, runs, tmp_path, calls, capsys):
    assert train(inputs, tmp_path / "run") == 0
    assert len(calls) == 2 * STEPS
    assert "tileformer attention, tileformer experts" in capsys.readouterr().out
    assert torch.equal(losses(tmp_path / "run"), losses(runs["tileformer"]))


def test_the_model_is_a_mixtral_that_generates(runs, calls):
    folder = runs["eager"]
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["num_local_experts"], config["num_experts_per_tok"]) == (
        "mixtral", 4, 2,
    )  # fmt: skip
    assert main(["generate", "--model", str(folder), "--max-new-tokens", "8", "--dtype", "fp32", "the"]) == 0
    assert calls


def test_a_continued_model_keeps_its_experts(inputs, runs, tmp_path, capsys):
    arguments = ["train", "--model", str(runs["eager"]), "--text", inputs[1], "--steps", "2"]
    arguments += ["--sequence-length", "32", "--batch-size", "2", "--dtype", "fp32"]
    assert main([*arguments, "--experts", "grouped_mm", "--out", str(tmp_path / "run")]) == 0
    assert "grouped_mm experts" in capsys.readouterr().out


def test_a_model_without_experts_is_refused(inputs, tmp_path, capsys):
    arguments = ["train", "--model", inputs[0], "--text", inputs[1], "--steps", "2", "--dtype", "fp32"]
    arguments += ["--sequence-length", "32", "--experts", "eager", "--out", str(tmp_path / "run")]
    assert main(arguments) == 2
    assert "--experts is for a model with experts" in capsys.readouterr().err
