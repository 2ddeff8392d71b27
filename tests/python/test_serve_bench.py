"""``tileformer serve-bench`` with a tiny model: the table, the JSON, bad input, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_model import write_tiny_gguf

from tileformer.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return str(write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def offline(cache, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_the_table_and_the_json(tiny, capsys, tmp_path):
    path = tmp_path / "figures.json"
    assert main(["serve-bench", "--model", tiny, "--quick", "--dtype", "fp32", "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    rows = dict(
        re.split(r" {2,}|(?<=first token) |(?<=pages used) ", line, maxsplit=1) for line in out.splitlines()
    )
    assert rows["requests"].startswith("6 of 6 finished")
    assert re.fullmatch(r"[\d.]+ new, [\d.]+ with prompts", rows["tokens/s"])
    for name in ("time to first token", "time per token"):
        assert re.fullmatch(r"p50 \d+ ms, p99 \d+ ms", rows[name])
    assert re.fullmatch(r"\d+ of 512 at most \(\d+ %\), 64 tokens each", rows["cache pages used"])
    assert "6/6" in err
    figures = json.loads(path.read_text())
    assert figures["finished"] == 6 and not figures["interrupted"] and 0 < figures["peak_pages"] <= 6
    assert 0 < figures["seconds_per_token"]["p50"] <= figures["seconds_per_token"]["p99"]
    assert f"{figures['prompt_tokens']} prompt + {figures['new_tokens']} new" == rows["tokens"]


def test_a_common_beginning_takes_fewer_pages(tiny, capsys, tmp_path):
    path = tmp_path / "figures.json"
    options = ["--prompts", "9", "--common-tokens", "64", "--prompt-tokens", "1:8", "--new-tokens", "4"]
    options += ["--max-batch-tokens", "96", "--page-size", "16", "--json", str(path)]
    assert main(["serve-bench", "--model", tiny, *options]) == 0
    assert json.loads(path.read_text())["peak_pages"] < 9 * 5  # alone, each would take five


@pytest.mark.parametrize(
    "options, message",
    [
        (["--page-size", "20"], "allowed are multiples of 16"),
        (["--json", "/no/such/folder/x.json"], "there is no such folder"),
        (["--prompt-tokens", "300", "--new-tokens", "8"], "256 fit into the model's context"),
        (["--max-tokens", "64", "--prompt-tokens", "80", "--new-tokens", "8"], "64 fit into the cache"),
    ],
)
def test_requests_that_make_no_sense_exit_with_2(tiny, capsys, options, message):
    assert main(["serve-bench", "--model", tiny, *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err


@pytest.mark.parametrize("given", ["5:2", "0:3", "many"])
def test_bad_lengths(capsys, given):
    with pytest.raises(SystemExit) as exit_:
        main(["serve-bench", "--prompt-tokens", given])
    assert exit_.value.code == 2 and "allowed are FROM:TO" in capsys.readouterr().err


def test_ctrl_c_still_prints_the_table(tiny):
    options = ["--model", tiny, "--prompts", "400", "--prompt-tokens", "16:64"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tileformer", "serve-bench", *options],
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while "ready in" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "(interrupted)" in err and "Traceback" not in err
    assert re.search(r"\d+ of 400 finished", out)
