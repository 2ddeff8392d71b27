"""What a run writes: plots of its losses, the log, the checkpoint file, and what survives an accident."""

import errno
import os

import pytest
import torch

from tileformer.training import checkpoint, plot
from tileformer.training.errors import TrainingError, TrainingStopped
from tileformer.training.log import Log, Record, read_log


def test_text_plot_falls_with_the_losses():
    lines = plot.text_plot([10 - 0.1 * i for i in range(80)], width=40, height=5).splitlines()
    assert lines[0].startswith("   9.950 |*") and lines[4].startswith("   2.150 |")
    assert [line.count("*") for line in lines[:5]] == [5, 10, 10, 10, 5]
    assert lines[-1].split() == ["step", "1", "80"]


@pytest.mark.parametrize("losses", [[], [3.0], [2.0, 2.0, 2.0], [1.0, 5.0]])
def test_text_plot_of_few_or_equal_losses(losses):
    assert plot.text_plot(losses).count("*") == len(losses)


def test_smoothing_starts_at_the_first_loss():
    assert plot.smooth([4.0]) == [pytest.approx(4.0)]
    assert plot.smooth([4.0] * 9)[-1] == pytest.approx(4.0)


def test_png(tmp_path, monkeypatch):
    path = tmp_path / "loss.png"
    assert plot.save_png([3.0, 2.0, 1.5], path, "title")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["loss.png"]
    monkeypatch.setattr(plot, "has_matplotlib", lambda: False)
    assert not plot.save_png([3.0], tmp_path / "other.png", "title")


def record(step: int) -> Record:
    return Record(step, 1 / step, 0.1, 0.2, 300.0, 400.0)


def test_the_log_drops_what_comes_again(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path)
    for step in range(1, 6):
        log.append(record(step))
    log.close()
    with path.open("a") as file:
        file.write('{"step": 6, "lo')  # torn by a kill
    assert read_log(path) == [record(step) for step in range(1, 6)]
    log = Log(path, keep_steps=3)
    log.append(record(4))
    log.close()
    assert read_log(path) == log.records == [record(step) for step in range(1, 5)]


def test_a_newer_checkpoint_takes_the_place_of_the_older(tmp_path):
    assert checkpoint.load_checkpoint(tmp_path) is None
    for step in (5, 10, 100):
        checkpoint.save_checkpoint(tmp_path, step, {"weights": torch.full((3,), float(step))})
        assert [found for found, _ in checkpoint.checkpoints(tmp_path)] == [step]
    state = checkpoint.load_checkpoint(tmp_path)
    assert state["step"] == 100 and state["weights"].tolist() == [100.0] * 3
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch, failing):
    checkpoint.save_checkpoint(tmp_path, 5, {"x": 1})

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(TrainingStopped, match="No space left on device; the checkpoint of step 5 is whole"):
        checkpoint.save_checkpoint(tmp_path, 10, {"x": 2})
    monkeypatch.undo()
    assert checkpoint.load_checkpoint(tmp_path)["x"] == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_checkpoint_is_said(tmp_path):
    path = checkpoint.save_checkpoint(tmp_path, 5, {"x": 1})
    os.truncate(path, 100)
    with pytest.raises(TrainingError, match=r"checkpoint .*checkpoint-00000005\.pt cannot be read"):
        checkpoint.load_checkpoint(tmp_path)
