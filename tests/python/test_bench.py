"""The benchmark's own arithmetic, its worker processes, and its command line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import cli, compare, environment, readme, summary  # noqa: E402
from bench.bars import CostPerWork, PercentOfPeak, unit_of  # noqa: E402
from bench.case import AttentionCase  # noqa: E402
from bench.contenders import Unavailable, Unsupported, torch_flash  # noqa: E402
from bench.inputs import attended, error_of, expected_rows, make_inputs  # noqa: E402
from bench.memory import peak_of_call  # noqa: E402
from bench.row import Entry, Result, Row  # noqa: E402
from bench.suites import SUITES  # noqa: E402
from bench.worker_process import WorkerProcess  # noqa: E402

pytestmark = pytest.mark.slow

OPTIONS = [
    {},
    {"causal": True},
    {"window": (5, 3)},
    {"window": (5, -1)},
    {"window": (-1, 3)},
    {"causal": True, "window": (7, 0)},
    {"causal": True, "window": (7, 9)},
]


def result_of(
    case: AttentionCase, isa: str = "avx2", percent: float | None = 50.0, **others: float
) -> Result:
    """A measured row that took 1 s; others: seconds of further entries, on the plain case."""
    entries = {"tileformer": Entry(case, 1.0, 1, 0.0, 1.0, percent)}
    plain = AttentionCase(dim=case.dim, seq=case.seq)
    entries |= {name: Entry(plain, seconds, 1, 0.0, 1.0, None) for name, seconds in others.items()}
    return Result("main", Row(case), isa, 100.0, None, entries)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_useful_work_counts_the_pairs_that_attend(options):
    case = AttentionCase(dim=8, seq=29, batch=2, heads=4, kv_heads=2, **options)
    assert case.pairs == attended(case, torch.arange(case.seq)).sum()
    assert case.flops == 4 * 2 * 4 * case.pairs * 8


def test_hidden_keys_are_no_useful_work():
    case = AttentionCase(dim=8, seq=32, mask="padding")
    assert case.pairs == make_inputs(case).mask.expand(1, 1, 32, 32).sum()


def test_causal_is_half_of_full():
    full = AttentionCase(dim=64, seq=4096)
    assert full.with_(causal=True).flops / full.flops == pytest.approx(0.5, abs=2e-4)


@pytest.mark.parametrize("suite", SUITES)
def test_rows_survive_json_and_differ(suite):
    rows = SUITES[suite](True)
    for row in rows:
        assert AttentionCase(**json.loads(json.dumps(row.case.to_json()))) == row.case
    assert len({(row.case, row.isa) for row in rows}) == len(rows)
    assert {row.case for row in SUITES[suite](False)} <= {row.case for row in rows}


@pytest.mark.parametrize(
    "options",
    [
        *OPTIONS,
        {"mask": "bool"},
        {"mask": "float"},
        {"mask": "padding"},
        {"alibi": True},
        {"causal": True, "mask": "bool"},
    ],
    ids=str,
)
def test_expected_rows_are_what_torch_computes(options):
    case = AttentionCase(dim=16, seq=40, batch=2, heads=4, kv_heads=2, dtype="fp32", **options)
    inputs = make_inputs(case)
    assert error_of(case, inputs, torch_flash.Implementation().prepare(case, inputs)()) < 1e-5


def test_expected_rows_with_sinks_and_softcap():
    case = AttentionCase(dim=16, seq=6, heads=2, dtype="fp32")
    inputs = make_inputs(case)
    every = torch.arange(case.seq)
    capped = expected_rows(case.with_(softcap=0.01), inputs, every)
    mean = inputs.value.double().mean(-2, keepdim=True).expand_as(capped)
    torch.testing.assert_close(capped, mean, atol=0.02, rtol=0)  # a tiny cap makes all scores alike
    inputs.sinks = torch.tensor([50.0, -50.0])
    sunk = expected_rows(case, inputs, every)
    assert sunk[:, 0].abs().max() < 1e-12  # head 0: the sink takes everything
    inputs.sinks = None
    torch.testing.assert_close(sunk[:, 1], expected_rows(case, inputs, every)[:, 1])


def test_torch_refuses_what_it_has_no_argument_for():
    case = AttentionCase(dim=16, seq=8, softcap=30.0)
    with pytest.raises(Unsupported, match="softcap"):
        torch_flash.Implementation().prepare(case, make_inputs(case))


def test_a_busy_machine_is_remarked():
    assert environment.busy({"cores": 2, "load_average": 0.3}) is None
    assert environment.busy({"cores": 2, "load_average": 6.0}) == "busy machine (load 6.0 on 2 cores)"


def test_units():
    assert unit_of("avx512_bf16", "bf16") == "dot"
    assert unit_of("amx", "bf16") == "amx"
    assert unit_of("amx", "fp32") == unit_of("avx512", "fp16") == "fma"
    assert unit_of("avx2", "bf16") == "avx2"


def test_percent_bar_is_the_one_of_the_unit():
    bar = PercentOfPeak(dot=91, avx2=40)
    case = AttentionCase(dim=8, seq=16)
    assert bar.judge(result_of(case, "avx2")).passed
    assert not bar.judge(result_of(case, "avx512_bf16")).passed
    assert bar.judge(result_of(case, "neon")) is None
    assert bar.judge(result_of(case, "avx2", percent=None)) is None


def test_cost_of_a_window_is_beside_its_share_of_the_work():
    case = AttentionCase(dim=8, seq=100, window=(0, 0))  # one pair of a hundred
    assert CostPerWork("plain", 1.25).judge(result_of(case, plain=90.0)).value == pytest.approx(100 / 90)


def test_memory_of_a_call_is_its_peak_without_its_output():
    def call() -> torch.Tensor:
        torch.ones(16 << 20)  # 64 MiB, gone before the output is made
        return torch.ones(8 << 20)

    call()
    extra = peak_of_call(call)["extra_bytes"]
    assert 28 << 20 < extra < 40 << 20


@pytest.fixture
def torch_worker():
    worker = WorkerProcess("torch-flash")
    yield worker
    worker.close()


def test_worker_times_a_case_and_refuses_another(torch_worker):
    assert torch_worker.description["version"] == torch.__version__
    case = AttentionCase(dim=16, seq=32, dtype="fp32")
    assert torch_worker.ask("prepare", key="x", case=case.to_json())["error"] < 1e-5
    timed = torch_worker.ask("time", key="x", seconds=0.01)
    assert 0 < timed["best"] < 0.1 and timed["calls"] > 1
    refused = torch_worker.ask("prepare", key="y", case=case.with_(sinks=True).to_json())
    assert "sinks" in refused["unsupported"]


def test_a_worker_that_dies_is_reported(torch_worker):
    os.kill(torch_worker._process.pid, signal.SIGILL)
    with pytest.raises(Unavailable, match="SIGILL"):
        torch_worker.ask("forget")


def test_an_unknown_isa_is_reported():
    with pytest.raises(Unavailable, match="no_such_isa"):
        WorkerProcess("tileformer", isa="no_such_isa")


def test_a_missing_peer_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="install-peers"):
        WorkerProcess("vllm")


def test_names_of_suites():
    assert cli.resolve([]) == [n for n in cli.NAMES if n not in cli.ALONE]
    assert cli.resolve(["attention", "training"]) == [*cli.GROUPS["attention"], "training"]
    assert cli.resolve(["attention_backward"]) == cli.GROUPS["attention_backward"]
    assert cli.resolve(["attention.window", "gqa"]) == ["gqa", "window"]
    with pytest.raises(SystemExit, match="no suite 'nothing'"):
        cli.resolve(["nothing"])


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    """A real run of the shortest suite, through the command line."""
    path = tmp_path_factory.mktemp("bench") / "run.json"
    command = [
        sys.executable,
        str(ROOT / "bench/run.py"),
        "overhead",
        "--seconds",
        "0.1",
        "--peers",
        "torch-flash",
    ]
    done = subprocess.run([*command, "--json", str(path)], capture_output=True, text=True, check=True)
    assert "1x8x16x64 bf16 full" in done.stdout
    return json.loads(path.read_text())


def test_a_run_records_machine_peers_and_ratios(report):
    assert {"cpu", "date", "tileformer", "versions"} <= report["environment"].keys()
    assert set(report["contenders"]) == {"tileformer", "torch-flash"}
    for row in report["rows"]:
        ours, torchs = row["entries"]["tileformer"], row["entries"]["torch-flash"]
        assert torchs["ratio"] == pytest.approx(torchs["seconds"] / ours["seconds"])
        assert ours["gflops"] == pytest.approx(AttentionCase(**ours["case"]).flops / ours["seconds"] / 1e9)
        assert ours["relative_error"] < 0.05


def test_compare_finds_gains_and_losses(report, tmp_path, capsys):
    slower = json.loads(json.dumps(report))
    for row in slower["rows"]:
        row["entries"]["tileformer"]["percent_of_peak"] = None
        row["entries"]["torch-flash"]["ratio"] *= 0.5
    for name, data in (("a", report), ("b", slower)):
        (tmp_path / name).write_text(json.dumps(data))
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert compare.main([a, a]) == 0
    assert compare.main([a, b]) == 1
    assert "LOSS   -50.0 %" in capsys.readouterr().out
    assert compare.main([b, a]) == 0


def test_bars_of_a_run(report, tmp_path, capsys):
    path = tmp_path / "run.json"
    bar = {"what": "% of peak", "value": 90.0, "relation": ">=", "bar": 91, "pass": False}
    report["rows"][0]["bars"] = [bar]
    path.write_text(json.dumps({"rows": report["rows"][:1]}))
    assert summary.main([str(path)]) == 1
    assert "| 90 % of peak | >= 91 | **short** |" in capsys.readouterr().out
    bar["pass"] = True
    path.write_text(json.dumps({"rows": report["rows"][:1]}))
    assert summary.main([str(path)]) == 0


def test_blocks_of_the_readme_come_from_the_results(tmp_path):
    (tmp_path / "r.json").write_text(
        json.dumps(
            {
                "environment": {
                    "cpu": "X",
                    "cpu_ids": {},
                    "cores": 2,
                    "load_average": 0.1,
                    "date": "2030-01-02T",
                    "versions": {"torch": "9"},
                },
                "contenders": {"tileformer": {"isa": "avx2"}},
                "rows": [],
            }
        )
    )
    text = "a\n<!-- bench:machine r.json -->\nold\n<!-- /bench -->\nb\n"
    expected = "a\n<!-- bench:machine r.json -->\nX, avx2, torch 9, 2030-01-02.\n<!-- /bench -->\nb\n"
    assert readme.render(text, tmp_path) == expected
    assert readme.render(expected, tmp_path) == expected
