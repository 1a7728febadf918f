"""The benchmark's own arithmetic, files and command line. Nothing here is a measurement."""

import csv
import hashlib
import itertools
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks import __main__ as command_line
from benchmarks import cases, peers, roofline, runner, store, timing
from benchmarks.reference import make_reference

ROOT = Path(__file__).parent.parent
CEILINGS = {"copy": 4.0, "fp32": 50.0, "tf32": 400.0, "fp16": 800.0, "bf16": 800.0, "empty_call_us": 2.0}
MACHINE = {"gpu": "NVIDIA Test 1", "driver": "1", "cuda": "13.0", "torch": "2.11", "cudnn": 91900}


def make_case(name="c", n=2, cin=4, h=5, w=6, cout=6, k=(3, 2), s=(2, 3), p=(1, 0), q=(0, 0), d=(1, 1), g=1, bias=True):
    return cases.Case(name, "made up", n, cin, h, w, cout, *k, *s, *p, *q, *d, g, bias)


SMALL = [
    make_case("strided"),
    make_case("dense", cout=12, k=(3, 3), s=(1, 1), p=(1, 1)),
    make_case("dense_cut", k=(2, 3), s=(1, 1), p=(2, 0)),
    make_case("blocks", k=(2, 3), p=(0, 0)),
    make_case("blocks_no_bias", k=(2, 2), s=(2, 2), p=(0, 0), bias=False),
    make_case("point", k=(1, 1), s=(1, 1), p=(0, 0)),
    make_case("groups", cin=4, cout=6, g=2, q=(1, 2)),
    make_case("depthwise", cin=4, cout=4, g=4, k=(3, 3), s=(1, 1), p=(1, 1)),
    make_case("dilated", k=(3, 3), s=(2, 2), d=(2, 3), q=(1, 2)),
    make_case("dilated_dense", k=(3, 3), s=(1, 1), d=(2, 3)),
    make_case("line", h=1, k=(1, 4), s=(1, 2), p=(0, 1)),
]
ids = {"ids": lambda value: value.case if isinstance(value, cases.Case) else str(value)}


# Cases


def test_cases_are_distinct_layers_that_exist():
    all_cases = cases.load_cases()
    assert len(all_cases) > 300
    assert len({c.case for c in all_cases}) == len(all_cases)
    assert len({replace(c, case="", source="") for c in all_cases}) == len(all_cases)
    assert sum(c.source.startswith("KernelBench") for c in all_cases) == 7
    for c in all_cases:
        w = torch.empty(c.w_shape, device="meta")
        x = torch.empty(c.x_shape, device="meta")
        y = F.conv_transpose2d(x, w, None, c.stride, c.padding, c.output_padding, c.groups, c.dilation)
        assert y.shape == c.y_shape, c
    assert {c.kind for c in all_cases} == set(cases.KINDS)


def test_another_table_of_layers(capsys, tmp_path):
    table = cases.DATA / "made_up.csv"
    assert command_line.main(["cases", "--data", str(table), "--only", "m1_*"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("m1_one ")
    published = {replace(c, case="", source="", bias=False) for c in cases.load_cases()}
    made_up = cases.load_cases(table)
    assert published.isdisjoint(replace(c, case="", source="", bias=False) for c in made_up)
    with pytest.raises(SystemExit):
        command_line.main(["cases", "--data", "none.csv"])
    assert "none.csv" in capsys.readouterr().err
    (tmp_path / "short.csv").write_text("case,source,n\nm1,made up,1\n")
    with pytest.raises(SystemExit):
        command_line.main(["cases", "--data", str(tmp_path / "short.csv")])
    assert "short.csv has no column cin, cout" in capsys.readouterr().err


def test_selection():
    all_cases = cases.load_cases()
    assert [c.case for c in cases.select(all_cases, ["kb69", "kb7*"])] == ["kb69", "kb71", "kb75", "kb78"]
    parts = [cases.select(all_cases, shard=(i, 3)) for i in (1, 2, 3)]
    assert sorted(c.case for part in parts for c in part) == sorted(c.case for c in all_cases)
    quick = cases.select(all_cases, quick=True)
    assert {c.case for c in all_cases if c.source.startswith("KernelBench")} < {c.case for c in quick}
    assert len(quick) < 40
    with pytest.raises(ValueError, match="kb1000"):
        cases.select(all_cases, ["kb1000"])


# Roofline


@pytest.mark.parametrize("case", SMALL, **ids)
def test_useful_flops_against_counting(case):
    out_h, out_w = case.out_size
    rows = sum(
        0 <= i * case.sh + t * case.dh - case.ph < out_h for i, t in itertools.product(range(case.h), range(case.kh))
    )
    columns = sum(
        0 <= i * case.sw + t * case.dw - case.pw < out_w for i, t in itertools.product(range(case.w), range(case.kw))
    )
    assert roofline.useful_flops(case) == 2 * case.n * rows * columns * case.cin * case.cout // case.groups


def test_floor_takes_the_larger_limit():
    case = make_case(n=1, cin=8, h=4, w=4, cout=2, k=(2, 2), s=(2, 2), p=(0, 0))
    elements = 8 * 16 + 8 * 2 * 4 + 2 * 64 + 2
    assert roofline.compulsory_bytes(case, "fp32") == 4 * elements
    assert roofline.compulsory_bytes(case, "bf16", "weight_grad") == 2 * (elements - 2)
    flops = 2 * 16 * 8 * 2 * 4
    assert roofline.floor_us(case, "fp32", CEILINGS) == (pytest.approx(4 * elements / 4e12 * 1e6), "memory")
    slow = CEILINGS | {"fp32": 1e-3}
    assert roofline.floor_us(case, "fp32", slow) == (pytest.approx(flops / 1e9 * 1e6), "compute")


def test_recorded_floors_agree():
    """The largest layer of all, worked out by hand: 64 x 64 channels, 3 x 3 taps, none of them outside."""
    kb57 = next(c for c in cases.load_cases() if c.case == "kb57")
    assert roofline.useful_flops(kb57) == 2 * 8 * 1024**2 * 64 * 64 * 9
    assert roofline.compulsory_bytes(kb57, "fp16") == 2 * (8 * 64 * 1024**2 + 64 * 64 * 9 + 8 * 64 * 1026**2)


# Peers and the reference


def operands(case, operation, dtype=torch.float64, layout="nchw"):
    return [runner.in_layout(t, layout) for t in runner.make_operands(case, dtype, "cpu", operation)]


def torch_result(case, operation, x, w, bias, dy):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = F.conv_transpose2d(x, w, bias, case.stride, case.padding, case.output_padding, case.groups, case.dilation)
    if operation == "forward":
        return y.detach()
    return torch.autograd.grad(y, x if operation == "input_grad" else w, dy)[0]


@pytest.mark.parametrize("operation", cases.OPERATIONS)
@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("case", SMALL, **ids)
def test_every_peer_computes_the_layer(case, layout, operation):
    tensors = operands(case, operation, layout=layout)
    expected = torch_result(case, operation, *tensors)
    channels_last = layout == "nhwc" and operation != "weight_grad"
    computed = set()
    for impl in ("convt", *cases.PEERS, "cudnn_benchmark"):
        try:
            y = peers.build(impl, operation, case, layout, *tensors)()
        except peers.NotApplicable:
            continue
        computed.add(impl)
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        if operation != "weight_grad":
            assert y.is_contiguous(memory_format=memory_format), impl
    forward = {
        "convt": True,
        "torch": True,
        "cudnn_benchmark": True,
        "gemm_shuffle": case.case in ("blocks", "blocks_no_bias", "point"),
        "gemm_fold": layout == "nchw" and case.case != "dilated",  # its output_padding reaches the stride
        "conv2d_flipped": case.case in ("dense", "point", "depthwise", "dilated_dense"),
    }
    wanted = forward if operation == "forward" else dict.fromkeys(["convt", *peers.universal(operation)][:3], True)
    wanted.pop("torch_compile", None)
    assert computed == {impl for impl, does in wanted.items() if does}


@pytest.mark.parametrize("operation", cases.OPERATIONS)
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("case", SMALL, **ids)
def test_reference_is_right(case, operation, sampled, monkeypatch):
    if sampled:
        monkeypatch.setattr("benchmarks.reference.FLOPS", 100)
    tensors = operands(case, operation)
    reference = make_reference(case, operation, *tensors)
    expected = torch_result(case, operation, *tensors)
    assert (reference.value.numel() < expected.numel()) == sampled
    assert reference.relative_l2(expected) < 1e-14
    wrong = expected.clone()
    wrong.view(-1)[0] += 1  # the first element is always in the sample
    assert reference.relative_l2(wrong) > 1e-6
    wrong.view(-1)[0] = float("nan")
    assert not reference.relative_l2(wrong) < float("inf")


def test_operands_are_random_repeatable_and_scaled():
    case = make_case(n=4, cin=64, h=16, w=16, cout=32, k=(4, 4), s=(2, 2), p=(1, 1))
    x, w, bias, dy = runner.make_operands(case, torch.float16, "cpu", "input_grad")
    again = runner.make_operands(case, torch.float16, "cpu", "input_grad")
    assert bias is None and again[2] is None
    assert all(map(torch.equal, (x, w, dy), (again[0], again[1], again[3])))
    y = torch_result(case, "forward", x.float(), w.float(), None, None)
    assert 0.7 < y.std() < 1.4 and x.std() > 0.9 and dy.shape == y.shape


# The store


def row(case="c", impl="convt", us=1.0, precision="fp32", **more):
    shape = {name: getattr(make_case(case), name) for name in cases.SHAPE_COLUMNS}
    cell = {"op": "forward", "precision": precision, "layout": "nchw", "impl": impl, "plan": "direct/a, b"}
    return shape | cell | {"us_median": us, "floor_us": 1, "floor_by": "memory", "rel_l2": 1e-7} | more


def new_store(folder, digest, rows):
    results = store.Store(folder, "test-1")
    results.start_run(runner.new_run(MACHINE, CEILINGS, digest, "python -m benchmarks"))
    results.append(rows)
    return results


def test_columns():
    text = (
        "case,source,n,cin,h,w,cout,kh,kw,sh,sw,ph,pw,oph,opw,dh,dw,groups,op,precision,layout,impl,plan,us_median,"
        "us_p10,us_p90,host_us,floor_us,floor_by,rel_l2,extra_bytes"
    )
    assert ",".join(store.COLUMNS) == text


def test_rows_are_on_disk_at_once_and_replaced_by_key(tmp_path):
    new_store(tmp_path, "old", [row("a"), row("b"), row("b", "torch")])
    # No compact(): as after a kill.
    assert len((tmp_path / "test-1.csv").read_text().splitlines()) == 4
    results = new_store(tmp_path, "new", [row("b", us=2.0)])
    assert len((tmp_path / "test-1.csv").read_text().splitlines()) == 5
    b = ("b", "forward", "fp32", "nchw", "convt")
    for seen in (results, store.Store(tmp_path, "test-1")):
        assert len(seen.rows) == 3
        assert seen.rows[b]["us_median"] == "2.0" and seen.rows[b]["plan"] == "direct/a, b"
        assert seen.digest_of(b) == "new"
        assert seen.digest_of(("b", "forward", "fp32", "nchw", "torch")) == "old"
        assert seen.digest_of(("a", "forward", "fp32", "nchw", "convt")) == "old"
    results.compact(order=["b", "a"])
    with open(tmp_path / "test-1.csv", newline="") as file:
        assert [r["case"] for r in csv.DictReader(file)] == ["b", "b", "a"]


def test_half_a_line_is_dropped(tmp_path):
    new_store(tmp_path, "old", [row("a")])
    with open(tmp_path / "test-1.csv", "a") as file:
        file.write("b,made up,2,4")
    assert list(store.Store(tmp_path, "test-1").rows) == [("a", "forward", "fp32", "nchw", "convt")]
    assert len(new_store(tmp_path, "new", [row("c")]).rows) == 2
    assert len(store.Store(tmp_path, "test-1").rows) == 2


def test_runs_without_rows_are_forgotten(tmp_path):
    new_store(tmp_path, "first", [row("a")])
    new_store(tmp_path, "second", [row("b")])
    new_store(tmp_path, "third", [row("a")]).compact()
    record = json.loads((tmp_path / "test-1.json").read_text())
    assert [run["digest"] for run in record["runs"]] == ["second", "third"]
    assert record["runs"][0]["ceilings"] == CEILINGS and record["runs"][0]["gpu"] == MACHINE["gpu"]
    assert store.Store(tmp_path, "test-1").digest_of(("a", "forward", "fp32", "nchw", "convt")) == "third"


def test_floors_follow_a_corrected_ceiling(tmp_path, capsys):
    results = new_store(tmp_path, "one", [row("kb57"), row("kb75")])
    before = {k: float(r["floor_us"]) for k, r in results.rows.items()}
    results.rows[next(iter(before))]["floor_us"] = "123"
    results.runs.append(results.runs[-1] | {"ceilings": {name: 2 * value for name, value in CEILINGS.items()}})
    results.compact(keep_last_run=True)
    assert command_line.main(["floors", "--output", str(tmp_path)]) == 0
    by_name = {case.case: case for case in cases.load_cases()}
    for k, r in store.Store(tmp_path, "test-1").rows.items():
        floor, limit = roofline.floor_us(by_name[k[0]], k[2], CEILINGS)
        assert float(r["floor_us"]) == pytest.approx(floor / 2, rel=1e-3) and r["floor_by"] == limit
    assert json.loads((tmp_path / "test-1.json").read_text())["source_digest"] == "one"


def test_merge_command(tmp_path, capsys):
    new_store(tmp_path / "x", "one", [row("a"), row("b")])
    new_store(tmp_path / "y", "two", [row("b", us=5.0), row("kb57")])
    folders = [str(tmp_path / "x"), str(tmp_path / "y")]
    assert command_line.main(["merge", "--output", str(tmp_path / "all"), *folders]) == 0
    merged = store.Store(tmp_path / "all", "test-1")
    assert {k[0]: (r["us_median"], merged.digest_of(k)) for k, r in merged.rows.items()} == {
        "a": ("1.0", "one"), "b": ("5.0", "two"), "kb57": ("1.0", "two")
    }  # fmt: skip


def test_digest_is_the_one_of_the_build(tmp_path):
    (tmp_path / "csrc/plan").mkdir(parents=True)
    (tmp_path / "csrc/plan/b.h").write_text("b")
    (tmp_path / "csrc/a.cpp").write_text("a")
    text = "".join(
        f"{name}\0{hashlib.sha256(content).hexdigest()}\n"
        for name, content in (("csrc/a.cpp", b"a"), ("csrc/plan/b.h", b"b"))
    )
    assert store.tree_digest(tmp_path) == hashlib.sha256(text.encode()).hexdigest()
    assert store.tree_digest(tmp_path / "csrc") is None


def test_slug():
    assert store.slug("NVIDIA H200") == "h200"
    assert store.slug("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3"
    assert store.slug("NVIDIA GeForce RTX 4090") == "rtx-4090"


# The runner, on the CPU with a stopwatch that counts


class HostStopwatch:
    def __init__(self):
        self.calls = 0

    def tidy(self):
        pass

    recover = tidy

    def probe(self, call):
        self.calls += 1
        return timing.Probe(call, output=call(), estimate=1.0, extra_bytes=64, host_us=[3.0])

    def sample(self, probes, host=True):
        for i, probe in enumerate(probes):
            probe.gpu_us = [1.0 + i, 2.0 + i, 3.0 + i]


def run_on_host(folder, some, stopwatch=None, digest="digest", **options):
    results = store.Store(folder, "test-1")
    record = runner.new_run(MACHINE, CEILINGS, digest, "python -m benchmarks")
    stopwatch = stopwatch or HostStopwatch()
    done = runner.run(stopwatch, results, some, runner.Options(**options), record, device="cpu")
    return done, stopwatch


@pytest.fixture
def no_plan(monkeypatch):
    monkeypatch.setattr(runner, "plan_name", lambda *arguments: "direct/some")


def test_plan_name_needs_no_gpu_when_one_is_named(monkeypatch):
    explain = runner.convt.explain
    monkeypatch.setattr(runner.convt, "explain", lambda *a, **k: explain(*a, **k, device="h200"))
    for case, operation in itertools.product(SMALL, cases.OPERATIONS):
        plan = runner.plan_name(case, operation, *operands(case, operation, torch.float32))
        assert all(plan.split("/")) and plan.count("/") == 1


@pytest.mark.parametrize("operation", cases.OPERATIONS)
def test_a_run_writes_every_row(tmp_path, no_plan, operation):
    some = SMALL[:4]
    done, _ = run_on_host(tmp_path, some, operation=operation)
    assert done == (len(some) * 8, 0)
    results = store.Store(tmp_path, "test-1")
    convt = [r for r in results.rows.values() if r["impl"] == "convt"]
    assert len(convt) == len(some) * 8
    limits = {"fp32": 1e-6, "tf32": 1e-6, "fp16": 2e-3, "bf16": 2e-2}
    for (case, op, precision, layout, impl), r in results.rows.items():
        assert op == operation
        # oneDNN's half-precision convolutions, which are the peers' on a CPU, are wrong for some sizes in some
        # versions of torch: the figure that says so is the one to expect of them then.
        theirs = float(results.rows[case, op, precision, layout, "torch"]["rel_l2"])
        of_peer = impl != "convt" and precision in ("fp16", "bf16")
        limit = max(limits[precision], 1.25 * theirs) if of_peer else limits[precision]
        assert 0 < float(r["rel_l2"]) < limit, (impl, r)
        assert float(r["us_p10"]) < float(r["us_median"]) < float(r["us_p90"])
        assert r["extra_bytes"] == "64" and r["host_us"] == "3" and r["floor_by"] in ("memory", "compute")
    impls = {r["impl"] for r in results.rows.values()}
    assert impls == ({"convt", *cases.PEERS} if operation == "forward" else {"convt", "torch"})


def test_resume_measures_only_what_this_source_lacks(tmp_path, no_plan):
    run_on_host(tmp_path, SMALL[:1], precisions=("fp32",))
    assert run_on_host(tmp_path, SMALL[:2], precisions=("fp32",), resume=True)[0] == (2, 0)
    assert run_on_host(tmp_path, SMALL[:2], precisions=("fp32",), resume=True)[0] == (0, 0)
    assert run_on_host(tmp_path, SMALL[:2], precisions=("fp32",))[0] == (4, 0)
    assert run_on_host(tmp_path, SMALL[:2], precisions=("fp32",), resume=True, digest="new")[0] == (4, 0)
    with_more = {"precisions": ("fp32",), "resume": True, "digest": "new", "peers": ("torch", "cudnn_benchmark")}
    assert run_on_host(tmp_path, SMALL[:2], **with_more)[0] == (4, 0)


def test_budget_stops_cleanly(tmp_path, no_plan):
    started = time.monotonic() - 100
    done, _ = run_on_host(tmp_path, SMALL[:2], budget=50, started=started)
    assert done == (1, 15)
    assert run_on_host(tmp_path, SMALL[:2], resume=True)[0] == (15, 0)


def test_interruption_keeps_finished_rows(tmp_path, no_plan):
    class Interrupted(HostStopwatch):
        def sample(self, probes):
            super().sample(probes)
            if self.calls > 8:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on_host(tmp_path, SMALL[:2], Interrupted())
    kept = {k[2:4] for k in store.Store(tmp_path, "test-1").rows}
    assert kept == {("fp32", "nchw"), ("fp32", "nhwc"), ("tf32", "nchw")}


def test_failures_are_rows_with_a_reason(tmp_path, no_plan, monkeypatch):
    class Small(HostStopwatch):
        def probe(self, call):
            probe = super().probe(call)
            if self.calls == 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
            if self.calls == 2:
                raise RuntimeError("cuDNN says no\nand more")
            return probe

    monkeypatch.setattr(peers, "_gemm_fold", lambda *a: (_ for _ in ()).throw(ValueError("its columns are too many")))
    run_on_host(tmp_path, SMALL[:1], Small(), precisions=("fp16",), layouts=("nchw",))
    rows = {k[4]: r for k, r in store.Store(tmp_path, "test-1").rows.items()}
    assert rows["convt"]["plan"] == "no figure: does not fit in memory"
    assert rows["torch"]["plan"] == "no figure: cuDNN says no"
    assert rows["gemm_fold"]["plan"] == "no figure: its columns are too many"
    assert all(r["us_median"] == r["rel_l2"] == r["extra_bytes"] == "" for r in rows.values())

    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner, "make_operands", full)
    run_on_host(tmp_path, SMALL[1:2], precisions=("fp16",), layouts=("nchw",))
    rows = [r for r in store.Store(tmp_path, "test-1").rows.values() if r["case"] == "dense"]
    assert [r["plan"] for r in rows] == ["no figure: does not fit in memory"] * (1 + len(cases.PEERS))


def test_operands_that_fit_in_one_layout_only(tmp_path, no_plan, monkeypatch):
    def strict(tensor, layout, whole=runner.in_layout):
        if layout == "nhwc":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(tensor, layout)

    monkeypatch.setattr(runner, "in_layout", strict)
    assert run_on_host(tmp_path, SMALL[:1], precisions=("fp32", "tf32"))[0] == (4, 0)
    for r in store.Store(tmp_path, "test-1").rows.values():
        assert (r["us_median"] == "") == (r["layout"] == "nhwc"), r


def test_failure_while_sampling_is_a_reason(tmp_path, no_plan):
    class Small(HostStopwatch):
        def sample(self, probes):
            raise torch.OutOfMemoryError("CUDA out of memory")

    assert run_on_host(tmp_path, SMALL[:1], Small(), precisions=("fp16",))[0] == (2, 0)
    rows = store.Store(tmp_path, "test-1").rows.values()
    assert {r["plan"] for r in rows} == {"no figure: does not fit in memory"}
    assert {r["us_median"] + r["rel_l2"] for r in rows} == {""}


@pytest.mark.parametrize("good_calls", [0, 2])
def test_a_lost_context_ends_the_run_and_keeps_the_row(tmp_path, no_plan, good_calls):
    class Lost(HostStopwatch):
        def probe(self, call):
            if self.calls >= good_calls:
                raise RuntimeError("an illegal memory access was encountered")
            return super().probe(call)

        def recover(self):
            raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="context is lost"):
        run_on_host(tmp_path, SMALL[:2], Lost(), precisions=("fp16",), layouts=("nchw",))
    rows = store.Store(tmp_path, "test-1").rows.values()
    assert {"convt", "torch", "gemm_fold"} <= {r["impl"] for r in rows}
    assert {r["plan"] for r in rows} == {"no figure: an illegal memory access was encountered"}
    # The next --resume goes on behind the case.
    assert run_on_host(tmp_path, SMALL[:2], precisions=("fp16",), layouts=("nchw",), resume=True)[0] == (1, 0)


# The report


def report_rows(precisions=("fp16", "fp32")):
    for i, case in enumerate(SMALL):
        for precision in precisions:
            shape = {name: getattr(case, name) for name in cases.SHAPE_COLUMNS}
            common = {"precision": precision, "host_us": 9, "extra_bytes": 2**20, "floor_us": 50.0}
            yield row(case.case, us=100.0, **common) | shape
            yield row(case.case, "torch", us=50.0 if i == 0 else 400.0, plan="", **common) | shape
            yield row(case.case, "gemm_fold", us=200.0, plan="", **common) | shape


def test_report_of_made_up_rows(tmp_path):
    from benchmarks import report

    new_store(tmp_path, "old", [row("stale_case", us=10.0)])
    wrong = row("dense", "gemm_shuffle", us=1.0, precision="fp32", rel_l2=0.5)
    missing = row("dense", "conv2d_flipped", us=None, rel_l2=None, precision="fp32", plan="no figure: too large")
    results = new_store(tmp_path, "new", [*report_rows(), wrong, missing])
    cells = report.load_cells(report.load_rows(results, "new"))
    count = len(SMALL)
    assert len(cells) == 2 * count + 1
    fresh = cells[~cells.stale]
    assert (fresh.best == "gemm_fold").sum() == 2 * (count - 1), "a wrong row is nobody's best peer"
    overall = report.figures(fresh)
    torch_mean = (0.5 * 4 ** (count - 1)) ** (1 / count)
    best_mean = (0.5 * 2 ** (count - 1)) ** (1 / count)
    assert overall == {
        "cells": 2 * count,
        "vs torch": f"{torch_mean:.2f}x",
        "vs best peer": f"{best_mean:.2f}x",
        "cells not slower": f"{(count - 1) / count:.0%}",
        "cases never slower": f"{(count - 1) / count:.0%}",
        "time / floor": f"2.00 ({2 * count})",
    }
    text = report.write(results, "new")
    assert "STALE" in text and "| fp16 | nchw |" in text
    written = (tmp_path / "test-1-report.md").read_text()
    assert "**Stale**: 1 of convt's" in written and "stale_case" in written
    assert "**Wrong**: 1 rows of gemm_shuffle in fp32" in written
    assert "No figure: 1 rows of conv2d_flipped: too large" in written
    assert "representative layers" not in written
    for kind in ("dense stride 1", "depthwise", "grouped", "dilated", "1-D", "k = s"):
        assert f"| {kind} |" in written
    for name in ("speedup", "roofline"):
        assert (tmp_path / f"test-1-{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"(test-1-{name}.png)" in written


def test_errors_in_the_report(tmp_path):
    from benchmarks import report

    def cell(case, ours, theirs, **more):
        return [row(case, rel_l2=ours, **more), row(case, "torch", rel_l2=theirs, **more)]

    rows = [*cell("a", 1.2e-7, 1e-7), *cell("b", 1.4e-7, 1e-7), *cell("c", 5e-4, 1e-4, precision="tf32"), row("d")]
    results = new_store(tmp_path, "new", rows)
    text = report.accuracy(report.load_rows(results, "new"))
    assert "at most 1.40 times torch's, and more than 1.25 times in 1 of 2 cells: b, nchw: 1.40." in text
    report.write(results, "new")
    assert text in (tmp_path / "test-1-report.md").read_text()
    assert report.accuracy(report.load_rows(results, "other")) == "", "of another source"
    assert "in 0 of 1 cells." in report.accuracy(report.load_rows(new_store(tmp_path / "one", "new", rows[:2]), "new"))


def test_layers_that_the_report_has_one_by_one(tmp_path):
    """The best peer in either layout is the faster layout's, though not the cell's own."""
    from benchmarks import report

    def both(layout, ours, theirs):
        shape = {"source": "representative layer", "layout": layout}
        yield row("dense", us=ours, **shape)
        yield row("dense", "torch", us=theirs, plan="", **shape)

    rows = [*both("nchw", 10.0, 20.0), *both("nhwc", 8.0, 4.0), row("depthwise", source="elsewhere")]
    results = new_store(tmp_path, "new", rows)
    cells = report.load_cells(report.load_rows(results, "new"))
    (nchw, nhwc) = report.one_by_one(cells).splitlines()[2:]
    assert nchw.endswith("| 2.00x | 2.00x | 0.40x |") and nhwc.endswith("| 0.50x | 0.50x | 0.50x |")
    report.write(results, "new")
    assert nchw in (tmp_path / "test-1-report.md").read_text()


def test_report_of_one_row(tmp_path):
    from benchmarks import report

    assert "| fp32 | nchw | 1 |" in report.write(new_store(tmp_path, "new", [row(us=3.0)]), "new")


def test_report_without_any_figure(tmp_path):
    from benchmarks import report

    results = new_store(tmp_path, "new", [row(us=None, rel_l2=None, plan="no figure: does not fit in memory")])
    assert "Written" in report.write(results, "new")
    assert "does not fit in memory" in (tmp_path / "test-1-report.md").read_text()


def test_torch_is_held_against_the_record(tmp_path):
    from benchmarks import report

    rows = [row("kb57", "torch", us=28038 * 1.05), row("kb65", "torch", us=8383.8 * 2)]
    results = new_store(tmp_path, "new", rows)
    text = report.against_record(report.load_rows(results, "new"), "h200")
    assert "50% of 2 rows within 10 %" in text and "| kb65 | fp32 | nchw |" in text and "| 2.00 |" in text
    assert report.against_record(report.load_rows(results, "new"), "test-1") is None


# The command line


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["sweep", "--help"], ["report", "--help"], ["merge", "--help"]]
)
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(arguments)
    assert stop.value.code == 0
    text = capsys.readouterr().out
    if arguments == ["--help"]:
        for option in ("--only", "--op", "--precision", "--layout", "--quick", "--budget", "--resume", "report"):
            assert option in text


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--only", "kb1000"], "no case is called 'kb1000'"),
        (["--precision", "fp8"], "'fp8' is none of fp32, tf32, fp16, bf16"),
        (["--peers", "torch,magic"], "'magic' is none of"),
        (["--shard", "3/2"], "not of the form i/n"),
        (["sweep", "--cases", "kb1000"], "no case is called 'kb1000'"),
        (["sweep", "--families", "direct,magic"], "no configuration begins with 'magic': "),
        (["sweep-report", "nowhere.csv"], "nowhere.csv holds no sweep"),
        (["report", "--output", "nowhere"], "there are no results in nowhere"),
        (["merge", "nowhere"], "none of these folders"),
    ],
)
def test_bad_arguments_get_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_measuring_without_a_gpu_is_refused():
    done = subprocess.run([sys.executable, "-m", "benchmarks", "--quick"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "needs a CUDA GPU" in done.stderr
    with pytest.raises(SystemExit) as stop:
        command_line.main(["sweep", "--quick"])
    assert stop.value.code == 2


def test_the_record_keeps_no_folder():
    text = command_line.recorded_command(["--only", "kb*", "--output", "/some/where", "--op", "forward"])
    assert text == "python -m benchmarks --only 'kb*' --op forward"
    assert command_line.recorded_command(["--quick", "--output=/some/where"]) == "python -m benchmarks --quick"
    for short in (["--out", "/some/where"], ["--ou=/some/where"]):
        assert command_line.recorded_command([*short, "--only", "kb57"]) == "python -m benchmarks --only kb57"


# On a GPU


@pytest.mark.gpu
def test_stopwatch_sees_work_memory_and_host_time():
    x = torch.randn(4096, 4096, device="cuda")
    with timing.Stopwatch(row_us=3000) as stopwatch:
        one = stopwatch.probe(lambda: x * 2)
        two = stopwatch.probe(lambda: ((x * 2) * 3)[:1].clone())
        assert torch.equal(one.output, x * 2)
        one.output = two.output = None
        stopwatch.sample([one, two])
    assert one.extra_bytes == 0
    assert x.nbytes <= two.extra_bytes <= 2.1 * x.nbytes
    assert 1.3 < two.quantiles()[0] / one.quantiles()[0] < 2.7
    assert all(len(probe.gpu_us) >= 3 and 0 < min(probe.host_us) < 1e5 for probe in (one, two))


@pytest.mark.gpu
def test_ceilings_are_plausible():
    with timing.Stopwatch() as stopwatch:
        ceilings = stopwatch.ceilings()
    assert 0.05 < ceilings["copy"] < 50
    # The ceiling is one: an eager copy_ is no faster than what is called the copy rate.
    source = torch.randn(2**26, device="cuda")
    target = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for event in (start, end):
        target.copy_(source)
        event.record()
    end.synchronize()
    assert 2 * source.nbytes / start.elapsed_time(end) * 1e-9 < 1.1 * ceilings["copy"]
    assert 1 < ceilings["fp32"] <= ceilings["tf32"] * 1.1 and ceilings["fp16"] > ceilings["fp32"]
    assert 0 < ceilings["empty_call_us"] < 50


@pytest.mark.gpu
def test_a_small_run_and_its_report(tmp_path, capsys):
    """A small layer through the whole command; every figure comes with its error."""
    from benchmarks import report

    assert command_line.main(["--only", "dcgan.g4", "--output", str(tmp_path)]) == 0
    name = store.slug(torch.cuda.get_device_name())
    results = store.Store(tmp_path, name)
    assert {k[4] for k in results.rows} == {"convt", "torch", "gemm_fold"}
    assert len([k for k in results.rows if k[4] == "convt"]) == 8
    for r in results.rows.values():
        assert float(r["us_median"]) > 0 and float(r["rel_l2"]) < report.LARGEST_ERROR[r["precision"]], r
    assert command_line.main(["report", "--output", str(tmp_path)]) == 0
    assert (tmp_path / f"{name}-report.md").exists()
    assert "vs torch" in capsys.readouterr().out
