"""The suites over a KV cache on tiny problems: work and traffic, inputs, contenders, bars, figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import cli, compare, paged_inputs, paged_suites, readme
from bench.contenders import Unavailable, Unsupported, open_contender
from bench.inputs import DTYPES
from bench.paged_bars import (
    BandwidthPointsBelow,
    BothCores,
    LessCache,
    LessTime,
    PeakBeside,
    PercentOfBandwidth,
    PercentOfBound,
)
from bench.paged_case import AppendCase, PagedCase
from bench.paged_inputs import PagedInputs, error_of, scattered_pages, tolerance_of
from bench.record import Record
from bench.row import Entry, Result, Row
from bench.runner import Runner
from bench.table import heading, lines_of

pytestmark = pytest.mark.slow

DECODE = PagedCase(dim=64, heads=6, kv_heads=2, lengths=(70, 200, 1))
EVEN = DECODE.with_(lengths=(130,) * 3)
CHUNK = PagedCase(dim=64, heads=6, kv_heads=2, lengths=(150, 150), queries=20)
PREFILL = PagedCase(dim=64, heads=6, kv_heads=2, lengths=(90,), queries=90)
MIXED = PagedCase(dim=64, heads=6, kv_heads=2, lengths=(100, 33, 80), queries=(1, 33, 40))
APPEND = AppendCase(dim=64, kv_heads=2, tokens=40, batch=3)


@pytest.mark.parametrize("suite", paged_suites.SUITES)
def test_rows_survive_json_and_differ(suite):
    rows = paged_suites.SUITES[suite](True)
    for row in rows:
        for case in (row.case, *row.variants.values()):
            assert type(case)(**json.loads(json.dumps(case.to_json()))) == case
    assert len({row.case for row in rows}) == len(rows)
    assert len({(row.case.label, row.case.threads) for row in rows}) == len(rows)
    assert {row.case for row in paged_suites.SUITES[suite](False)} <= {row.case for row in rows}


def test_caches_of_decode_are_large():
    for dim in (64, 128):
        for group in (1, 16):
            case = paged_suites.decode_case(dim, group)
            assert case.traffic_bytes == 256 << 20
            assert case.with_(cache_dtype="int8").traffic_bytes >= 128 << 20
            assert case.flops == case.traffic_bytes * group  # an operation per byte and query head


def test_work_is_what_attends():
    assert DECODE.pairs == 271 and DECODE.flops == 4 * 6 * 64 * 271
    assert DECODE.traffic_bytes == 271 * 2 * 2 * 64 * 2
    assert DECODE.with_(cache_dtype="int8").traffic_bytes == 271 * 2 * 2 * (64 + 4)
    assert PREFILL.pairs == 90 * 91 // 2 and PREFILL.traffic_bytes == 0
    seen = torch.ones(20, 150).tril(130)
    assert CHUNK.pairs == 2 * seen.sum()
    assert APPEND.traffic_bytes == 120 * 2 * 2 * 64 * 2 and APPEND.flops == 0


def test_a_cache_follows_the_dtype_unless_it_has_its_own():
    assert DECODE.with_(dtype="fp32").cache_dtype == "fp32"
    assert DECODE.with_(cache_dtype="int8").with_(dtype="fp16").cache_dtype == "int8"
    assert DECODE.with_(cache_dtype="e4m3").label == "3x6/2x1..200x64 bf16 e4m3-cache decode"
    assert MIXED.label == "3x6/2x33..100x64 bf16 1..40 new"


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_numbers_are_of_one_size_and_repeat_no_row(dtype, monkeypatch):
    monkeypatch.setattr(paged_inputs, "_PERIOD", 37)
    numbers = paged_inputs.random_numbers((50, 64), dtype, 1)
    assert numbers.dtype == DTYPES[dtype] and numbers.data_ptr() % (2 << 20) == 0
    assert numbers.abs().min() >= 0.5 and numbers.abs().max() <= 1
    assert 0.4 < (numbers > 0).float().mean() < 0.6
    # As many rows as the period has words, at the least.
    assert len({tuple(row.tolist()) for row in numbers[:37]}) == 37
    assert torch.equal(numbers, paged_inputs.random_numbers((50, 64), dtype, 1))


def test_pages_are_scattered_and_used_once():
    table = scattered_pages((100, 64, 300), 64)
    assert table.shape == (3, 5) and (table[1] >= 0).sum() == 1
    pages = table[table >= 0].tolist()
    assert sorted(pages) == list(range(8)) and pages != sorted(pages)


def checked(contender: str, case: PagedCase | AppendCase) -> float:
    """The contender's error on the case."""
    try:
        implementation = open_contender(contender)
    except Unavailable as reason:
        pytest.skip(str(reason))
    inputs = PagedInputs.of(case)
    method = implementation.prepare_append if isinstance(case, AppendCase) else implementation.prepare_paged
    with torch.inference_mode():
        call = method(case, inputs)
        return error_of(inputs, call.output())


OURS = [
    DECODE,
    EVEN.with_(layout="flash"),
    DECODE.with_(layout="flash", page=16),
    DECODE.with_(dtype="fp16"),
    *(DECODE.with_(cache_dtype=dtype) for dtype in ("int8", "e4m3", "e5m2")),
    CHUNK,
    CHUNK.with_(layout="contiguous"),
    PREFILL,
    MIXED,
    MIXED.with_(layout="contiguous"),
    APPEND,
    *(APPEND.with_(cache_dtype=dtype) for dtype in ("int8", "e4m3", "e5m2")),
]
PEERS = [DECODE, EVEN, DECODE.with_(dtype="fp32"), CHUNK, PREFILL, MIXED]


@pytest.mark.parametrize("case", OURS, ids=lambda case: case.label)
def test_tileformer_computes_the_case(case):
    assert checked("tileformer", case) < tolerance_of(case)


@pytest.mark.parametrize("case", [*PEERS, APPEND], ids=lambda case: case.label)
def test_torch_computes_the_case(case):
    assert checked("torch-flash", case) < tolerance_of(case)


@pytest.mark.parametrize("case", PEERS, ids=lambda case: case.label)
def test_vllm_computes_the_case(case):
    assert checked("vllm", case) < tolerance_of(case)


def test_an_error_is_noticed():
    inputs = PagedInputs.of(DECODE)
    assert error_of(inputs, torch.zeros(3, 6, 64)) > 0.9
    with pytest.raises(Unsupported, match="no cache of int8"):
        checked("torch-flash", DECODE.with_(cache_dtype="int8"))


def test_bandwidth_is_measured():
    pytest.importorskip("tileformer")
    for kind in ("read", "write"):
        assert 0.1 < getattr(torch.ops.tileformer, f"measure_{kind}_bandwidth")(2 << 20) < 20000
    with pytest.raises(ValueError, match="bytes: given 5, allowed 1048576"):
        torch.ops.tileformer.measure_read_bandwidth(5)


def result_of(percent: float, bandwidth: float, **variants: Entry) -> Result:
    """A decode row that took 1 s."""
    base = Entry(DECODE, 1.0, 1, 0.0, 10.0, percent, 5.0, bandwidth, 100)
    return Result("decode", Row(DECODE), "avx2", 100.0, 20.0, {"tileformer": base, **variants})


def variant(seconds: float = 1.0, gflops: float = 10.0, bandwidth: float = 50.0, cache: int = 100) -> Entry:
    return Entry(DECODE, seconds, 1, 0.0, gflops, 50.0, 5.0, bandwidth, cache)


def test_a_row_is_judged_by_what_bounds_it():
    bar = PercentOfBound(read=80, multiply=85)
    # Products allow 100 / 50 of the bandwidth; then 60 / 90, which is less than the 80 % asked for.
    assert str(bar.judge(result_of(percent=40, bandwidth=81))) == "% of read bandwidth 81 >= 80: pass"
    assert str(bar.judge(result_of(percent=90, bandwidth=60))) == "% of multiply peak 90 >= 85: pass"
    assert str(bar.judge(result_of(percent=80, bandwidth=60))) == "% of multiply peak 80 >= 85: SHORT"
    assert bar.judge(result_of(percent=None, bandwidth=60)) is None


def test_bars_beside_variants():
    result = result_of(50, 70, other=variant(seconds=1.5, gflops=10.6, bandwidth=79, cache=400))
    judged = {
        str(bar.judge(result))
        for bar in (
            BandwidthPointsBelow("other", 8),
            BothCores("other", 1.8, enough=85),
            BothCores("other", 1.8, enough=70),
            PeakBeside("other", 7),
            LessCache("other", 4),
            LessTime("other", 20),
            PercentOfBandwidth(60),
        )
    }
    assert judged == {
        "points of bandwidth below other 9 <= 8: SHORT",
        "times other 1.5 >= 1.8: SHORT",
        "% of read bandwidth 70 >= 70: pass",
        "% of other's percent of peak 94.3 >= 93: pass",
        "times less cache than other 4 >= 4: pass",
        "% less time than other 33.3 >= 20: pass",
        "% of read bandwidth 70 >= 60: pass",
    }
    absent = result_of(50, 70)
    for bar in (BandwidthPointsBelow("x", 8), BothCores("x", 1.8, 85), PeakBeside("x", 7), LessCache("x", 4)):
        assert bar.judge(absent) is None


@pytest.fixture(scope="module")
def report() -> dict:
    """Tiny rows through the runner, and what the command line would write."""
    pytest.importorskip("tileformer")
    runner = Runner(0.05, ["torch-flash"])
    group4 = paged_suites.decode_case(64, 4).with_(lengths=(64,) * 8)
    rows = [
        ("decode", Row(group4, {"int8": group4.with_(cache_dtype="int8")}, peers=("torch-flash",))),
        ("decode", Row(group4.with_(threads=2), {"1 thread": group4}, peers=())),
        ("append", Row(APPEND, peers=("torch-flash",))),
        ("prefill", Row(CHUNK, {"contiguous": CHUNK.with_(layout="contiguous")}, peers=("torch-flash",))),
    ]
    results = [runner.measure(suite, row) for suite, row in rows]
    runner.close()
    assert runner.notes == []
    for result in results:
        assert result.row.case.label in lines_of(result)[0]
    environment = {"cpu": "X", "cpu_ids": {}, "cores": 9, "load_average": 0, "date": "2030-01-02T"}
    return {
        "environment": {**environment, "versions": {"torch": "9"}},
        "contenders": runner.descriptions,
        "rows": [result.to_json() for result in results],
    }


def test_rates_are_of_traffic_and_bandwidth(report):
    decode, threads, append, prefill = report["rows"]
    for row in (decode, threads, append):
        case = {"append": AppendCase}.get(row["suite"], PagedCase)(**row["entries"]["tileformer"]["case"])
        own = row["entries"]["tileformer"]
        assert own["gb_per_s"] == pytest.approx(case.traffic_bytes / own["seconds"] / 1e9)
        percent = 100 * own["gb_per_s"] / row["bandwidth_gb_per_s"]
        assert own["percent_of_bandwidth"] == pytest.approx(percent)
    assert decode["entries"]["tileformer"]["cache_bytes"] > decode["entries"]["int8"]["cache_bytes"]
    assert append["peak_gflops"] is None and append["entries"]["tileformer"]["relative_error"] == 0
    assert prefill["bandwidth_gb_per_s"] is None and prefill["entries"]["tileformer"]["gb_per_s"] is None
    assert prefill["entries"]["contiguous"]["percent_of_peak"] > 0


def test_compare_prefers_the_percent_of_bandwidth(report):
    found = list(compare.differences(report, report))
    assert [d["kind"] for d in found][:2] == ["percent of bandwidth"] * 2
    assert found[-1]["kind"] == "percent of peak" and {d["change"] for d in found} == {0.0}


def test_the_readme_gets_a_line_for_each_row_of_decode(report):
    text = readme.BLOCKS["decode"](report)
    assert text.count("\n") == 3 and "| 8x32/8x64x64 bf16 | 1 |" in text and "vs torch-flash" in text


def test_the_figure_is_drawn(report, monkeypatch):
    plots = pytest.importorskip("bench.plots")
    monkeypatch.setattr(plots, "is_of_decode_figure", lambda case: case.threads == 1)
    (axis,) = plots.decode(report).axes
    assert {line.get_label() for line in axis.lines} == {"tileformer", "torch-flash", "read bandwidth"}


def test_the_heading_names_the_columns():
    assert heading("decode", "d", True).endswith("GB/s % bandw  time of others / ours")
    assert "GB/s " not in heading("main", "d")


def test_names_of_suites():
    assert cli.resolve(["prefill", "decode"]) == ["decode", "prefill"]
    assert cli.resolve(["kv_cache"]) == ["decode", "append", "prefill"]


def test_an_interrupted_run_keeps_what_it_measured(tmp_path, monkeypatch, capsys):
    def measure(suite, runner, full, threads, results):
        if suite == "prefill":
            results.append({"suite": suite, "label": "half", "threads": 1, "isa": "avx2", "bars": []})
            raise KeyboardInterrupt
        results.append({"suite": suite, "label": suite, "threads": 1, "isa": "avx2", "bars": []})

    monkeypatch.setattr(cli, "_run_rows", measure)
    path = tmp_path / "deep" / "run.json"
    assert cli.main(["decode", "prefill", "--json", str(path)]) == 130
    assert [row["label"] for row in json.loads(path.read_text())["rows"]] == ["decode", "half"]
    assert f"results: {path}" in capsys.readouterr().out
    assert list(path.parent.iterdir()) == [path]


def test_nothing_measured_leaves_no_file(tmp_path):
    assert Record(tmp_path / "run.json", {"rows": []}).save() is None
    assert list(tmp_path.iterdir()) == []
