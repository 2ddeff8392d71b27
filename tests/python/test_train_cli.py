"""``tileformer train``: a run from end to end, resumed after accidents, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_training

from tileformer.cli import main
from tileformer.training.checkpoint import checkpoints
from tileformer.training.log import read_log

pytestmark = pytest.mark.slow

STEPS = 60


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> tuple[str, str]:
    return tiny_training.write_inputs(tmp_path_factory.mktemp("training"))


@pytest.fixture(autouse=True, scope="module")
def offline(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


def train(inputs, out: Path, **changes) -> int:
    return main(["train", "--out", str(out), *tiny_training.options(inputs, **{"steps": STEPS, **changes})])


def start(*arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "tileformer", "train", *arguments]
    return subprocess.Popen(
        command,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def losses(out: Path) -> list[tuple[int, float, float, float]]:
    """Everything of the log that does not depend on the clock, bit for bit."""
    return [(r.step, r.loss, r.learning_rate, r.gradient_norm) for r in read_log(out / "log.jsonl")]


def wait_for_lines(path: Path, count: int, process: subprocess.Popen) -> None:
    while not path.exists() or path.read_text().count("\n") < count:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)


@pytest.fixture(scope="module")
def whole_run(inputs, offline, tmp_path_factory) -> Path:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("run") / "whole"
    assert train(inputs, out) == 0
    return out


def test_a_run_learns_and_leaves_log_plot_and_model(whole_run):
    log = [json.loads(line) for line in (whole_run / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == list(range(1, STEPS + 1))
    assert log[-1]["loss"] < log[0]["loss"] - 0.1
    assert all(line["tokens_per_second"] > 0 and line["peak_rss_mib"] > 50 for line in log)
    rates = [line["learning_rate"] for line in log]
    assert max(rates) == pytest.approx(2e-3) and rates[-1] < 1e-4
    assert (whole_run / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert [step for step, _ in checkpoints(whole_run)] == [STEPS]
    assert not list(whole_run.glob("*.partial"))


def test_what_is_printed(inputs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tileformer.training.plot.has_matplotlib", lambda: False)
    assert train(inputs, tmp_path / "run", steps=4) == 0
    out, err = capsys.readouterr()
    assert "+----" in out and "step 1" in out  # the losses as text: there is no matplotlib
    assert re.search(
        r"^4 steps of 2 x 32 tokens \| loss [\d.]+ -> [\d.]+ \| \d+ tok/s \| tileformer attention"
        r"(, fused loss)? \| ISA \w+ \| float32 \| 1 thread \| peak memory \d+ MiB$",
        out,
        re.MULTILINE,
    ), out
    assert f"tileformer generate --model {tmp_path / 'run'}" in out
    assert re.search(r"^step 4/4 \| loss [\d.]+ \| \d+ tok/s$", err, re.MULTILINE), err
    assert "\r" not in out + err


def test_the_model_answers(whole_run, capsys):
    arguments = ["generate", "--model", str(whole_run), "--max-new-tokens", "8", "--dtype", "fp32"]
    assert main([*arguments, "the quick"]) == 0
    out = capsys.readouterr().out
    assert "new tokens | prefill" in out


def test_a_trained_model_can_be_continued(inputs, whole_run, tmp_path):
    options = ["--model", str(whole_run), "--text", inputs[1], "--sequence-length", "32", "--steps", "2"]
    assert (
        main(["train", *options, "--batch-size", "2", "--threads", "1", "--out", str(tmp_path / "on")]) == 0
    )
    continued, first = losses(tmp_path / "on"), losses(whole_run)
    assert continued[0][1] < first[0][1] - 0.1


def test_the_same_seed_gives_the_same_run(inputs, whole_run, tmp_path):
    assert train(inputs, tmp_path / "again") == 0
    assert losses(tmp_path / "again") == losses(whole_run)
    assert train(inputs, tmp_path / "other", seed=1, steps=2) == 0
    assert losses(tmp_path / "other")[0] != losses(whole_run)[0]


def test_a_killed_run_goes_on_to_the_same_losses(inputs, whole_run, tmp_path):
    out = tmp_path / "run"
    options = tiny_training.options(inputs, steps=STEPS, **{"save-every": 3})
    process = start(*options, "--out", str(out))
    wait_for_lines(out / "log.jsonl", 7, process)
    process.kill()
    process.communicate()
    before = losses(out)
    ((saved, _),) = checkpoints(out)
    assert 6 <= len(before) < STEPS and saved >= len(before) - 3
    assert before == losses(whole_run)[: len(before)]
    assert main(["train", "--resume", "--out", str(out)]) == 0
    assert losses(out) == losses(whole_run)
    assert (out / "model.safetensors").read_bytes() == (whole_run / "model.safetensors").read_bytes()


def test_a_run_killed_before_its_first_checkpoint_starts_anew(inputs, whole_run, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(whole_run, out)
    for _, path in checkpoints(out):
        path.unlink()
    (out / ".checkpoint.partial").write_bytes(b"half a checkpoint")
    assert main(["train", "--resume", "--out", str(out)]) == 0
    assert losses(out) == losses(whole_run)
    assert not (out / ".checkpoint.partial").exists()


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_ends(inputs, whole_run, tmp_path, number, code):
    out = tmp_path / "run"
    process = start(
        *tiny_training.options(inputs, steps=STEPS), "--out", str(out),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    wait_for_lines(out / "log.jsonl", 2, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    done = len(losses(out))
    assert f"step {done} of {STEPS} is saved" in err and f"--resume --out {out}" in err
    assert "Traceback" not in err
    assert [step for step, _ in checkpoints(out)] == [done]
    assert main(["train", "--resume", "--out", str(out)]) == 0
    assert losses(out) == losses(whole_run)


def test_a_disk_that_fills_up_leaves_the_last_checkpoint(inputs, whole_run, tmp_path):
    out = tmp_path / "run"
    process = start(*tiny_training.options(inputs, steps=STEPS, **{"save-every": 8}), "--out", str(out))
    wait_for_lines(out / "log.jsonl", 9, process)
    process.kill()
    process.communicate()
    ((saved, path),) = checkpoints(out)
    content = path.read_bytes()

    def small_files() -> None:  # a write beyond this fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) // 2, len(content) // 2))

    process = start("--resume", "--out", str(out), "--save-every", "2", preexec_fn=small_files)
    printed, err = process.communicate(timeout=300)
    assert process.returncode == 1 and printed == "", err
    assert f"cannot write the checkpoint of step {saved + 2}" in err and "Traceback" not in err
    assert f"the checkpoint of step {saved} is whole" in err
    assert checkpoints(out) == [(saved, path)] and path.read_bytes() == content
    assert main(["train", "--resume", "--out", str(out)]) == 0
    assert losses(out) == losses(whole_run)


def test_the_folder_of_another_run_is_left_alone(inputs, whole_run, tmp_path, capsys):
    before = {path.name: path.stat().st_mtime_ns for path in whole_run.iterdir()}
    assert train(inputs, whole_run) == 2
    err = capsys.readouterr().err
    assert "holds a run already" in err and f"--resume --out {whole_run}" in err
    assert {path.name: path.stat().st_mtime_ns for path in whole_run.iterdir()} == before
    (tmp_path / "thesis.tex").write_text("years of work")
    assert train(inputs, tmp_path) == 2
    assert "holds other files (thesis.tex)" in capsys.readouterr().err


def test_one_process_per_folder(inputs, tmp_path, capsys):
    out = tmp_path / "run"
    process = start(*tiny_training.options(inputs, steps=100_000), "--out", str(out))
    wait_for_lines(out / "log.jsonl", 1, process)
    assert main(["train", "--resume", "--out", str(out)]) == 2
    assert "another process trains in this folder" in capsys.readouterr().err
    process.kill()
    process.communicate()


def test_a_finished_run_can_be_resumed_and_stays_as_it_is(whole_run, tmp_path):
    shutil.copytree(whole_run, tmp_path / "run")
    assert main(["train", "--resume", "--out", str(tmp_path / "run")]) == 0
    assert losses(tmp_path / "run") == losses(whole_run)


def test_a_changed_text_is_no_continuation(inputs, whole_run, tmp_path, capsys):
    text = tmp_path / "text"
    shutil.copytree(inputs[1], text)
    out = tmp_path / "run"
    assert train((inputs[0], str(text)), out, steps=3) == 0
    (text / "0.txt").write_text("something else " * 50)
    assert main(["train", "--resume", "--out", str(out)]) == 2
    assert "the text (or the tokenizer) is not the one" in capsys.readouterr().err
    assert [step for step, _ in checkpoints(out)] == [3]


def test_a_loss_that_is_not_finite_ends_the_run(inputs, tmp_path, capsys):
    out = tmp_path / "run"
    assert train(inputs, out, steps=40, **{"learning-rate": 1e20, "clip": 0, "warmup-steps": 1}) == 1
    err = capsys.readouterr().err
    assert re.search(r"error: step \d+: the loss is .*a lower --learning-rate may help", err), err


def test_compare_trains_with_each_attention(inputs, capsys):
    arguments = [*tiny_training.options(inputs), "--steps", "2"]
    assert main(["train", "--compare", "eager,sdpa,tileformer", *arguments]) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line for line in out.splitlines() if " MiB " in line}
    assert rows.keys() == {"eager", "sdpa", "tileformer"}
    for name in ("eager", "tileformer"):
        row = re.fullmatch(r"\w+ +[\d.]+ +[\d.]+x +(\d+) MiB +[\d.]+, (\S+)", rows[name].rstrip())
        assert row and int(row[1]) > 100 and float(row[2]) < 1e-4, rows[name]


def test_a_contender_that_fails_is_said_beside_the_others(inputs, capsys, monkeypatch):
    from tileformer.cli.compare_training import table
    from tileformer.training.compare import Outcome, parse_contenders

    good, bad = (Outcome(contender) for contender in parse_contenders("tileformer,eager"))
    good.losses, good.speeds, good.peak_rss_mib = [3.0, 2.5], [10.0, 20.0], 512.0
    bad.failure = "died of SIGKILL in a step (out of memory?)"
    lines = table([good, bad])
    assert "20.0" in lines[1] and "1.00x" in lines[1] and "512 MiB" in lines[1]
    assert lines[2].split(maxsplit=1) == ["eager", bad.failure]


BAD_OPTIONS = [
    (["--steps", "0"], "--steps: '0' given, allowed are whole numbers from 1"),
    (["--seed", "-1"], "--seed: '-1' given, allowed are whole numbers from 0"),
    (["--learning-rate", "nan"], "--learning-rate: 'nan' given, allowed are numbers from 0"),
    (["--dtype", "fp16"], "--dtype: 'fp16' given, allowed are auto, bf16, fp32"),
    (["--attn", "flash"], "--attn: invalid choice: 'flash'"),
    (["--stepps", "3"], "train does not take --stepps"),
]


@pytest.mark.parametrize("options, message", BAD_OPTIONS)
def test_bad_options_exit_with_2_and_name_what_is_allowed(capsys, options, message):
    with pytest.raises(SystemExit) as exit_:
        main(["train", *options])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


BAD_REQUESTS = [
    (["--hidden", "30", "--heads", "4"], "each head needs the same even number of dimensions"),
    (["--heads", "6", "--kv-heads", "4"], "--kv-heads is 4, which does not divide --heads 6"),
    (["--sequence-length", "1"], "--sequence-length is 1"),
    (["--steps", "5", "--warmup-steps", "6"], "--warmup-steps is 6, more than the 5 --steps"),
    (["--model", "smollm2", "--layers", "2"], "--layers shapes a new model (llama, mixtral, smollm2-random)"),
    (["--model", "/no/such/model"], "no such file or folder"),
    (["--text", "/no/such/text"], "--text '/no/such/text': no such file or folder"),
    (["--resume"], "--resume needs --out"),
    (["--resume", "--out", "/no/such/run"], "--out /no/such/run: holds no run to resume"),
    (["--compare", "flash"], "--compare: 'flash' given; allowed are tileformer, sdpa, eager"),
    (["--compare", "sdpa,sdpa"], "names one twice"),
    (["--compare", "--out", "x", "--save-every", "3"], "--compare does not take --out, --save-every"),
    (["--out", "/proc/run"], "--out /proc/run: "),
]


@pytest.mark.parametrize("options, message", BAD_REQUESTS)
def test_requests_that_make_no_sense_exit_with_2(inputs, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    default = [] if "--model" in options else ["--tokenizer", inputs[0]]
    text = [] if "--text" in options else ["--text", inputs[1]]
    arguments = options if "--resume" in options else [*options, *default, *text]
    assert main(["train", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err, err
    assert not os.listdir(tmp_path)


def test_a_run_is_resumed_from_another_folder(inputs, whole_run, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(inputs[1]).parent)
    assert train(("tiny.gguf", "text"), tmp_path / "run", steps=2) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "--out", "run", "--steps", "2", "--text", inputs[1]]) == 0


def test_a_resumed_run_goes_on_as_it_began(whole_run, capsys):
    assert main(["train", "--resume", "--out", str(whole_run), "--steps", "50"]) == 2
    assert f"--steps 50: the run in {whole_run} has {STEPS}" in capsys.readouterr().err
