"""The suites of mixture of experts on tiny problems: work and traffic, inputs, contenders, bars, figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import cli, experts_case, experts_memory_suite, experts_suites, readme, summary
from bench.bars import Ahead
from bench.contenders import Unavailable, Unsupported, open_contender
from bench.experts_bars import CostPerToken, ShareOfLayer
from bench.experts_case import ExpertsCase, RouteCase
from bench.experts_gradients import gradient_call, gradient_error
from bench.experts_inputs import ExpertsInputs, error_of, in_turn, tolerance_of
from bench.experts_memory_suite import GROUPED
from bench.route_inputs import TOLERANCE, route_error, route_inputs
from bench.row import BASE, Entry, Result, Row
from bench.runner import LONG_CALL, Runner
from bench.table import lines_of
from bench.yardsticks import Yardsticks

pytestmark = pytest.mark.slow

TINY = ExpertsCase(tokens=13, hidden=64, inter=48, experts=8, top_k=2)
BACKWARD = TINY.with_(work="backward")
ROUTE = RouteCase(tokens=70, hidden=32, experts=8, top_k=3)


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    """Tiny weights, too, are beyond it in a few sets."""
    monkeypatch.setattr(experts_case, "last_level_cache", lambda: 64 << 10)


@pytest.mark.parametrize("suite", experts_suites.SUITES)
def test_rows_survive_json_and_differ(suite):
    rows = experts_suites.SUITES[suite](True)
    for row in rows:
        for case in (row.case, *row.variants.values()):
            assert type(case)(**json.loads(json.dumps(case.to_json()))) == case
    assert len({(row.case, row.isa) for row in rows}) == len(rows)
    assert len({(row.case.label, row.case.threads, row.isa) for row in rows}) == len(rows)
    assert {(row.case, row.isa) for row in experts_suites.SUITES[suite](False)} <= {
        (row.case, row.isa) for row in rows
    }


def test_groups_of_codes_divide_the_rows():
    for row in experts_suites.quantized(True):
        case = row.case
        assert case.weight_dtype in experts_suites.GAINS and row.variants["bf16"].weight_dtype == "bf16"
        assert case.weight_dtype == "int8" or case.hidden % case.group == case.inter % case.group == 0


def test_work_is_that_of_the_tokens_experts():
    assert TINY.flops == 6 * 13 * 2 * 64 * 48
    assert BACKWARD.flops == 2 * TINY.flops and TINY.with_(work="step").flops == 3 * TINY.flops


def test_traffic_is_the_weights_of_the_experts_that_have_tokens():
    one = TINY.with_(tokens=1)
    weights = 3 * 64 * 48
    assert one.touched == 2 and one.traffic_bytes == 2 * weights * 2
    assert one.with_(weight_dtype="int8").expert_bytes == weights + 4 * (2 * 48 + 64)
    assert one.with_(weight_dtype="int4", group=32).expert_bytes == weights / 2 + 4 * weights / 32
    assert TINY.touched == len({e for chosen in TINY.choices for e in chosen}) <= 8
    assert TINY.with_(tokens=65).traffic_bytes == 0 and BACKWARD.traffic_bytes == 0


def test_weights_follow_the_dtype_unless_they_are_codes():
    assert TINY.with_(dtype="fp32").weight_dtype == "fp32"
    assert TINY.with_(weight_dtype="int8").with_(dtype="fp16").weight_dtype == "int8"
    assert TINY.with_(weight_dtype="int4", group=32).label == "13x64x48 2/8 bf16 int4-weights group=32"
    assert BACKWARD.label == "13x64x48 2/8 bf16 backward"


def test_few_tokens_find_weights_in_no_cache():
    one = TINY.with_(tokens=1)
    assert one.layers * one.experts * one.expert_bytes >= experts_case.COLD * (64 << 10)
    assert one.stream_bytes == one.layers * one.experts * one.expert_bytes
    assert TINY.with_(tokens=500).layers == 1
    inputs = ExpertsInputs.of(one)
    sets = [(layer, frozenset(routing.experts.flatten().tolist())) for layer, routing in inputs.turns]
    assert {layer for layer, _ in sets} == set(range(one.layers))
    assert len(set(sets)) == len(sets), "no turn uses the experts of another"
    assert all(len(chosen) == one.touched for _, chosen in sets)


def test_inputs_are_the_same_in_every_process_and_ask_for_gradients():
    first, second = ExpertsInputs.of(TINY), ExpertsInputs.of(TINY.with_(threads=2))
    assert torch.equal(first.hidden, second.hidden) and not first.hidden.requires_grad
    assert torch.allclose(first.routings[0].weights.sum(-1), torch.ones(13))
    assert not torch.equal(first.layers[0].down, first.layers[1].down)
    own = ExpertsInputs.of(BACKWARD)
    leaves = own.hidden, own.layers[0].gate_up, own.layers[0].down, own.routings[0].weights
    assert all(leaf.requires_grad and leaf.is_leaf for leaf in leaves) and len(list(own.turns)) == 1


def test_calls_take_turns():
    calls = in_turn([lambda: 1, lambda: 2])
    assert [calls() for _ in range(5)] == [1, 2, 1, 2, 1]


def checked(contender: str, case: ExpertsCase) -> float:
    """The contender's error on the case."""
    try:
        implementation = open_contender(contender)
    except Unavailable as reason:
        pytest.skip(str(reason))
    inputs = ExpertsInputs.of(case)
    calls = implementation.prepare_experts(case, inputs)
    if case.work != "forward":
        return gradient_error(inputs, gradient_call(inputs, in_turn(calls))())
    with torch.inference_mode():
        return error_of(inputs, calls[0]())


FORWARD = [TINY, TINY.with_(dtype="fp16"), TINY.with_(dtype="fp32"), TINY.with_(tokens=100, inter=80)]
TRAINING = [BACKWARD, BACKWARD.with_(dtype="fp32"), TINY.with_(work="step", dtype="fp32", tokens=100)]
CODES = [
    TINY.with_(weight_dtype=kind, tokens=tokens, inter=128)
    for kind in ("int8", "int4")
    for tokens in (2, 100)
]


@pytest.mark.parametrize("case", [*FORWARD, *TRAINING, *CODES], ids=lambda case: case.label)
def test_tileformer_computes_the_case(case):
    assert checked(BASE, case) < tolerance_of(case)


@pytest.mark.parametrize("case", [*FORWARD, *TRAINING], ids=lambda case: case.label)
@pytest.mark.parametrize("contender", [GROUPED, "torch-loop"])
def test_torch_computes_the_case(contender, case):
    assert checked(contender, case) < tolerance_of(case)


@pytest.mark.parametrize("case", FORWARD, ids=lambda case: case.label)
@pytest.mark.parametrize("contender", ["vllm", "sglang"])
def test_kernels_of_servers_compute_the_case(contender, case):
    try:
        assert checked(contender, case) < tolerance_of(case)
    except Unsupported as reason:
        # What SGLang's kernels are not made for.
        assert contender == "sglang", reason
        assert case.dtype == "fp32" or case.inter % 32


@pytest.mark.parametrize("contender", [BASE, GROUPED])
def test_routing_puts_tokens_in_order(contender):
    hidden, logits = route_inputs(ROUTE)
    rows = open_contender(contender).prepare_route(ROUTE, hidden, logits)()
    assert rows.shape == (210, 32) and route_error(ROUTE, hidden, logits, rows) < TOLERANCE
    assert route_error(ROUTE, hidden, logits, rows.roll(1, 0)) > TOLERANCE


def test_an_error_is_noticed():
    inputs = ExpertsInputs.of(TINY)
    assert error_of(inputs, torch.zeros(13, 64)) > 0.9
    own = ExpertsInputs.of(BACKWARD.with_(dtype="fp32"))
    gradients = gradient_call(own, open_contender(GROUPED).prepare_experts(own.case, own)[0])()
    for i in range(4):
        wrong = [g * 1.01 if i == j else g for j, g in enumerate(gradients)]
        assert 5e-3 < gradient_error(own, wrong) < 2e-2
    with pytest.raises(Unsupported, match="no experts with such weights"):
        checked(GROUPED, TINY.with_(weight_dtype="int8"))
    with pytest.raises(Unsupported, match="no backward"):
        gradient_call(own, lambda: torch.zeros(13, 64))


def test_bars_of_routing():
    base, layer = (Entry(ROUTE, seconds, 1, 0.0, 0.0, None) for seconds in (1.0, 49.0))
    longer = Entry(ROUTE.with_(tokens=140), 2.5, 1, 0.0, 0.0, None)
    result = Result("moe_route", Row(ROUTE), "avx2", None, None, {BASE: base, "l": layer, "x": longer})
    assert str(ShareOfLayer("l", 2).judge(result)) == "% of the time with l 2 <= 2: pass"
    assert str(CostPerToken("x", 1.2).judge(result)) == "times the cost of a token in x 1.25 <= 1.2: SHORT"
    assert ShareOfLayer("y", 2).judge(result) is None and CostPerToken("y", 2).judge(result) is None


def test_memory_is_judged_beside_grouped_mm():
    case = TINY.with_(work="step")
    # Tokens, weights and routing weights, and as much for their gradients.
    assert experts_memory_suite.tensor_bytes(case) == 2 * (2 * (8 * 3 * 64 * 48 + 13 * 64) + 4 * 13 * 2)
    points = [
        {"contender": name, "case": case.to_json(), "extra_bytes": extra}
        for name, extra in ((BASE, 50), (GROUPED, 100), ("torch-loop", 10))
    ]
    (verdict,) = experts_memory_suite.judge(points)
    assert verdict.passed and verdict.value == 50 and case.label in verdict.what
    assert experts_memory_suite.judge(points[1:]) == []


def test_bandwidth_is_measured_on_the_weights_of_all_turns():
    asked = []

    def ask(do: str, **arguments):
        asked.append((do, arguments))
        return {"gb_per_s": 10.0, "gflops": 100.0}

    one = TINY.with_(tokens=1)
    yardsticks = Yardsticks(ask, [one, one.with_(threads=2)])
    yardsticks.measure()
    sizes = {arguments["bytes"] for do, arguments in asked if do == "bandwidth"}
    assert sizes == {one.stream_bytes} and yardsticks.bandwidth(2) == 10.0 and yardsticks.peak == 100.0


def test_a_long_call_is_not_repeated(monkeypatch):
    runner, asked = Runner(0.0, []), []

    def ask(seat, do, **arguments):
        asked.append((do, arguments.get("key")))
        return {"error": 0.0, "best": 2 * LONG_CALL if arguments.get("key") == "slow" else 1.0, "calls": 1}

    monkeypatch.setattr(runner, "_ask", ask)
    monkeypatch.setattr(runner, "_worker", lambda seat: object())
    runner.descriptions[BASE] = {"isa": "avx2"}
    result = runner.measure("moe_many", Row(TINY.with_(tokens=65), {"slow": TINY}, peers=()))
    assert asked.count(("time", BASE)) == 2 and asked.count(("time", "slow")) == 1
    assert result.ratio("slow") == 2 * LONG_CALL


@pytest.fixture(scope="module")
def report() -> dict:
    """Tiny rows through the runner, and what the command line would write."""
    runner = Runner(0.05, [GROUPED])
    few, peers = TINY.with_(hidden=512, inter=512, tokens=1), (GROUPED,)
    rows = [
        ("moe_few", Row(few, peers=peers, bars=(Ahead(GROUPED),))),
        ("moe_many", Row(few.with_(tokens=100), peers=peers)),
        ("moe_backward", Row(few.with_(tokens=100, work="backward"), peers=peers)),
        ("moe_quantized", Row(few.with_(weight_dtype="int8"), {"bf16": few}, peers=())),
        ("moe_route", Row(ROUTE, {"experts": few.with_(tokens=70)}, peers=peers)),
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


def test_rates_are_of_work_and_weights(report):
    few, many, backward, quantized, route = report["rows"]
    for row in (few, quantized):
        own, case = row["entries"][BASE], ExpertsCase(**row["entries"][BASE]["case"])
        assert own["gb_per_s"] == pytest.approx(case.traffic_bytes / own["seconds"] / 1e9)
        percent = 100 * own["gb_per_s"] / row["bandwidth_gb_per_s"]
        assert own["percent_of_bandwidth"] == pytest.approx(percent)
    for row in (many, backward):
        own = row["entries"][BASE]
        assert own["gb_per_s"] is None and own["percent_of_peak"] > 0
        assert row["entries"][GROUPED]["ratio"] > 0
    assert route["peak_gflops"] is None and {GROUPED, "experts"} < set(route["entries"])


def test_the_readme_gets_a_line_for_each_row(report):
    text = readme.BLOCKS["moe"](report)
    assert text.count("\n") == 4 and f"vs {GROUPED}" in text
    assert "| 100x512x512 2/8 bf16 backward | 1 |" in text
    text = readme.BLOCKS["moe_quantized"](report)
    assert text.count("\n") == 2 and "| 1x512x512 2/8 bf16 int8-weights |" in text


def test_bars_are_listed(report):
    (found,) = summary.bars_of(report)
    assert found[0] == f"moe_few: 1x512x512 2/8 bf16, 1 thr, {report['rows'][0]['isa']}"
    assert found[1]["what"] == f"times {GROUPED}"


def test_the_figure_is_drawn(report):
    plots = pytest.importorskip("bench.plots")
    (axis,) = plots.moe(report).axes
    assert {line.get_label() for line in axis.lines} == {BASE, GROUPED, "bandwidth, then peak"}
    assert [len(line.get_xdata()) for line in axis.lines] == [2, 2, 2]


def test_memory_of_a_step_in_fresh_processes(monkeypatch):
    case = TINY.with_(work="step", hidden=256, inter=256, tokens=200, dtype="fp32")
    monkeypatch.setattr(experts_memory_suite, "cases", lambda full: [case])
    notes: list[str] = []
    points = list(experts_memory_suite.run(False, [GROUPED], notes))
    assert notes == [] and [point["contender"] for point in points] == [BASE, GROUPED]
    for point in points:
        assert case.label in experts_memory_suite.line_of(point)
    text = readme.BLOCKS["moe_memory"]({"moe_memory": {"points": points}})
    assert text.count("\n") == 3 and f"{case.label}, {GROUPED}" in text


def test_names_of_suites():
    assert cli.resolve(["moe"]) == [*experts_suites.SUITES, "moe_memory"]
    assert cli.resolve(["moe_few", "moe.moe_many"]) == ["moe_many", "moe_few"]
