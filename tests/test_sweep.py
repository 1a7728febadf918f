"""The sweep over forced configurations: its files, what it does about those that fail, and its report."""

import csv
import functools
import math
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from test_benchmarks import CEILINGS, MACHINE, SMALL, HostStopwatch, make_case

import convt
from benchmarks import __main__ as command_line
from benchmarks import cases, runner, store, sweep, timing

BY_NAME = {case.case: case for case in SMALL}
DENSE, DEPTHWISE = BY_NAME["dense"], BY_NAME["depthwise"]


@pytest.fixture(autouse=True)
def named_device(monkeypatch):
    """Plans for a GPU that is not here."""
    explain = convt.explain
    monkeypatch.setattr(convt, "explain", lambda *a, **k: explain(*a, **k, device="h200"))


@pytest.fixture(autouse=True)
def forces(monkeypatch):
    """What was forced, in order; nothing is, so that every build can run this."""
    names = []
    monkeypatch.setattr(sweep._C, "force_configuration", names.append)
    return names


class Watching(HostStopwatch):
    """Knows what is forced while a call is probed, and fails as told.

    Args:
        bad: configurations whose calls raise.
        fatal: whether nothing works after that.
    """

    def __init__(self, forces, bad=(), fatal=False):
        super().__init__()
        self.forces, self.bad, self.fatal, self.dead = forces, bad, fatal, False

    def probe(self, call):
        assert not self.dead
        before = len(self.forces)
        probe = super().probe(call)
        if any(name in self.bad for name in self.forces[before:]):
            self.dead = self.fatal
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more lines")
        return probe

    def recover(self):
        if self.dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def run(folder, some, stopwatch=None, digest="digest", **options):
    results = sweep.SweepStore(folder, "test-1")
    record = runner.new_run(MACHINE, CEILINGS, digest, "python -m benchmarks sweep")
    if options.get("resume"):
        options["lost"] = results.lost(digest)
    done = runner.run(
        stopwatch or HostStopwatch(), results, some, sweep.SweepOptions(peers=(), **options), record, device="cpu"
    )
    return done, sweep.SweepStore(folder, "test-1")


def one_cell(results, case, precision="fp32", layout="nchw"):
    wanted = (case.case, "forward", precision, layout)
    return {k[4]: row for k, row in results.rows.items() if k[:4] == wanted}


def test_candidates_take_the_layer():
    for case in SMALL:
        for precision in cases.PRECISIONS:
            found = sweep.candidates(case, "forward", precision, "nchw")
            assert "direct/thread_per_output" in found and "aten/convolution" not in found
            assert set(found) <= set(convt._C.configuration_names())
            assert all(c.fits for c in found.values())
            only = sweep.candidates(case, "forward", precision, "nchw", ("direct/", "none"))
            assert list(only) == ["direct/thread_per_output"]
    in_depthwise = [c for c in sweep.candidates(DEPTHWISE, "forward", "fp32", "nchw") if c.startswith("depthwise/")]
    assert in_depthwise
    assert {"aten/convolution", "direct/thread_per_input"} <= set(sweep.candidates(DENSE, "input_grad", "fp32", "nchw"))


def test_candidates_near_the_choice():
    """The planner's choice, what it expects to be about as fast, and nothing that only a forced plan uses or torch."""
    for precision in ("fp32", "fp16"):
        found = sweep.candidates(DENSE, "forward", precision, "nchw")
        near = sweep.candidates(DENSE, "forward", precision, "nchw", near=1.5)
        may = {name: c for name, c in found.items() if not c.reservation}
        least = min(c.estimated_seconds for c in may.values())
        assert set(near) == {name for name, c in may.items() if c.estimated_seconds <= 1.5 * least}
        assert 0 < len(near) < len(may)
        options = sweep.SweepOptions("forward", (precision,), ("nchw",), (), False, math.inf, near=1.5)
        assert list(options.contenders(DENSE, precision, "nchw")) == list(near)
        options.near = math.inf
        assert set(options.contenders(DENSE, precision, "nchw")) == {sweep.TORCH, *found}


def test_precisions_and_layouts_have_candidates_of_their_own():
    """Plans depend on both, through torch's flag and through the strides."""
    case = make_case(n=4, cin=64, h=32, w=32, cout=64, k=(3, 3), s=(1, 1), p=(1, 1))

    def estimates(precision, layout):
        found = sweep.candidates(case, "forward", precision, layout)
        return [(name, c.estimated_seconds) for name, c in found.items()]

    assert estimates("fp32", "nchw") != estimates("tf32", "nchw")
    assert torch.backends.cudnn.allow_tf32  # as it was


@pytest.mark.parametrize("operation", cases.OPERATIONS)
def test_a_sweep_writes_every_configuration(tmp_path, forces, operation):
    some = [DENSE, DEPTHWISE, BY_NAME["dilated"]]
    done, results = run(tmp_path, some, operation=operation)
    assert done == (len(some) * 8, 0)
    with open(tmp_path / "test-1-sweep.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(results.rows)
    expected = set()
    for case in some:
        for precision in cases.PRECISIONS:
            for layout in cases.LAYOUTS:
                found = sweep.candidates(case, operation, precision, layout)
                expected |= {(case.case, operation, precision, layout, name) for name in ("torch", *found)}
                for name, candidate in found.items():
                    row = results.rows[case.case, operation, precision, layout, name]
                    assert float(row["estimated_us"]) == pytest.approx(candidate.estimated_seconds * 1e6, rel=1e-4)
                    assert row["grid"] == str(candidate.plan.grid)
                    assert row["reservation"] == candidate.reservation
                    assert row["tile"] == (str(candidate.plan.tile) if candidate.plan.tile.rows else "")
    assert set(results.rows) == expected
    limits = {"fp32": 1e-6, "tf32": 1e-6, "fp16": 2e-3, "bf16": 2e-2}
    for (_, _, precision, _, name), row in results.rows.items():
        assert float(row["us_median"]) > 0 and float(row["floor_us"]) > 0 and row["note"] == ""
        assert row["class"] == BY_NAME[row["case"]].kind
        # torch's own half precision on the CPU is wrong for some sizes in some versions.
        if name != "torch":
            assert float(row["rel_l2"]) < limits[precision]
        assert (row["rel_l2_torch"] == "") == (name == "torch") or precision in ("fp16", "bf16")
        assert (row["estimated_us"] == "") == (name == "torch")
    assert {"torch", *filter(None, forces)} == {k[4] for k in results.rows}
    assert set(forces[1::2]) == {""}, "a force does not outlive its call"
    assert results.troubles("digest") == [] and results.runs[-1]["digest"] == "digest"


def test_tiles_are_told(tmp_path):
    _, results = run(tmp_path, [DENSE], precisions=("tf32",), layouts=("nchw",))
    tiles = {row["configuration"]: row["tile"] for row in results.rows.values()}
    assert tiles["implicit_gemm_sm80/64x64"].startswith("tiles of ")
    assert tiles["direct/thread_per_output"] == tiles["torch"] == ""


def test_what_only_a_forced_plan_uses_is_told(tmp_path):
    """It is no choice of the planner, and none of the report."""
    from benchmarks import sweep_report

    few_terms = make_case(n=4, cin=2, h=32, w=32, cout=64, k=(3, 3), s=(2, 2), p=(1, 1))
    _, results = run(tmp_path, [few_terms], precisions=("fp32", "tf32"), layouts=("nhwc",))
    reserved = {name for name, row in one_cell(results, few_terms, layout="nhwc").items() if row["reservation"]}
    assert "implicit_gemm_sm80/64x64" in reserved and "direct/thread_per_output" not in reserved
    assert not any(row["reservation"] for row in one_cell(results, few_terms, "tf32", "nhwc").values())
    cells = sweep_report.load_cells(sweep_report.load_rows(results))
    of_float32 = cells[cells.precision == "fp32"]
    assert len(of_float32) and not reserved & {*of_float32.choice, *of_float32.best}
    text = sweep_report.text(results)
    assert f"{len(reserved)} rows of implicit_gemm_sm" in text and "less accurate than float32" in text


def test_a_file_of_before_a_column_was_added(tmp_path):
    _, results = run(tmp_path, [DENSE], precisions=("tf32",), layouts=("nchw",))
    with open(results.csv_path, newline="") as file:
        rows = list(csv.DictReader(file))
    with open(results.csv_path, "w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != "reservation"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    again = sweep.SweepStore(tmp_path, "test-1")
    assert again.rows == {key: row | {"reservation": ""} for key, row in results.rows.items()}
    assert run(tmp_path, [DENSE], precisions=("fp16",), layouts=("nchw",))[0] == (1, 0)
    assert set(results.rows) < set(sweep.SweepStore(tmp_path, "test-1").rows)


def test_families_are_those_asked_for(tmp_path):
    _, results = run(tmp_path, [DEPTHWISE], families=("depthwise/", "direct/"), layouts=("nchw",))
    families = {row["configuration"].split("/")[0] for row in results.rows.values()}
    assert families == {"torch", "depthwise", "direct"}


def test_classes_take_turns():
    order = sweep.evenly(cases.load_cases())
    assert sorted(c.case for c in order) == sorted(c.case for c in cases.load_cases())
    total = Counter(c.kind for c in order)
    for cut in (8, 40, 100):
        counts = Counter(c.kind for c in order[:cut])
        most = max(counts.values())
        assert all(counts[kind] >= min(most - 1, total[kind]) for kind in cases.KINDS)
    assert order[0].case == cases.load_cases()[0].case


def test_a_wrong_element_outside_of_the_sample_is_seen(tmp_path, monkeypatch):
    """A large layer's reference covers some channels only; the comparison with torch covers all."""
    monkeypatch.setattr("benchmarks.reference.FLOPS", 100)
    spoilt = "direct/thread_per_output"

    def forced(configuration, call):
        def wrong():
            y = call()
            y[0, 1] += 0.5 if configuration == spoilt else 0
            return y

        return wrong

    monkeypatch.setattr(sweep, "forced", forced)
    _, results = run(tmp_path, [DENSE], precisions=("fp32",), layouts=("nchw",))
    rows = one_cell(results, DENSE)
    assert float(rows[spoilt]["rel_l2"]) < 1e-6 < 1e-2 < float(rows[spoilt]["rel_l2_torch"])
    assert [row["configuration"] for row in results.troubles("digest")] == [spoilt]
    assert results.troubles("another") == []


def test_nan_is_wrong(tmp_path, monkeypatch):
    def forced(configuration, call):
        return lambda: call().fill_(float("nan"))

    monkeypatch.setattr(sweep, "forced", forced)
    _, results = run(tmp_path, [DENSE], precisions=("fp16",), layouts=("nchw",), families=("direct",))
    assert [row["rel_l2"] for row in results.troubles("digest")] == ["nan"]


def test_distance_in_parts():
    a, b = torch.randn(5, 3, 2, 2), torch.randn(5, 3, 2, 2)
    assert sweep.distance(a, b) == pytest.approx(((a - b).norm() / b.norm()).item(), rel=1e-6)
    large = torch.zeros(1).expand(9, 2**13, 2**11)  # one part a slice, and nothing is allocated for the whole
    assert sweep.distance(large + 0, large + 1) == pytest.approx(1)


def test_a_failure_is_a_row_and_the_others_go_on(tmp_path, forces):
    stopwatch = Watching(forces, bad=("direct/thread_per_output",))
    done, results = run(tmp_path, [DENSE, DEPTHWISE], stopwatch, layouts=("nchw",))
    assert done == (8, 0)
    for row in results.rows.values():
        failed = row["configuration"] == "direct/thread_per_output"
        note = "failed: CUDA error: an illegal memory access was encountered"
        assert row["note"] == (note if failed else "")
        assert (row["us_median"] == "") == failed
    assert len(results.troubles("digest")) == 8 and results.lost("digest") == {}


def test_a_lost_context_ends_the_sweep_and_resume_goes_on_without_the_configuration(tmp_path, forces):
    name = "implicit_gemm_sm80/64x64"
    some = {"precisions": ("tf32", "fp16"), "layouts": ("nchw",)}
    with pytest.raises(runner.ContextLost, match="an illegal memory access"):
        run(tmp_path, [DENSE, BY_NAME["strided"]], Watching(forces, bad=(name,), fatal=True), **some)
    results = sweep.SweepStore(tmp_path, "test-1")
    rows = one_cell(results, DENSE, "tf32")
    # The rest of the cell has no row, for the next process has to measure it.
    assert list(rows) == [name] and len(results.rows) == 1
    note = "ended the CUDA context: CUDA error: an illegal memory access was encountered"
    assert rows[name]["note"] == note and rows[name]["us_median"] == ""
    assert results.lost("digest") == {name: ("dense", "tf32", "nchw")} and results.lost("another") == {}

    stopwatch = Watching(forces, bad=(name,), fatal=True)
    done, results = run(tmp_path, [DENSE, BY_NAME["strided"]], stopwatch, resume=True, **some)
    assert done == (4, 0)
    for k, row in results.rows.items():
        assert (row["us_median"] == "") == (k[4] == name)
    notes = [row["note"] for row in results.rows.values() if row["configuration"] == name]
    assert notes == [note] + 3 * ["not tried: it ended a process in dense tf32 nchw"]
    assert [row["note"] for row in results.troubles("digest")] == [note]
    assert run(tmp_path, [DENSE, BY_NAME["strided"]], resume=True, **some)[0] == (0, 0)
    # With another source it is tried again.
    assert run(tmp_path, [DENSE], resume=True, digest="new", **some)[0] == (2, 0)


def test_a_failure_while_sampling_is_nobodys(tmp_path):
    class Dying(HostStopwatch):
        def sample(self, probes, host=True):
            raise RuntimeError("CUDA error: misaligned address")

        def recover(self):
            raise RuntimeError("CUDA error: misaligned address")

    with pytest.raises(runner.ContextLost):
        run(tmp_path, [DENSE, DEPTHWISE], Dying(), precisions=("fp32",), layouts=("nchw",))
    results = sweep.SweepStore(tmp_path, "test-1")
    assert {row["note"] for row in one_cell(results, DENSE).values()} == {"failed: CUDA error: misaligned address"}
    assert results.lost("digest") == {}
    assert run(tmp_path, [DENSE, DEPTHWISE], precisions=("fp32",), layouts=("nchw",), resume=True)[0] == (1, 0)


def test_what_does_not_fit_in_memory_is_no_failure(tmp_path, monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner, "make_operands", full)
    done, results = run(tmp_path, [DENSE], precisions=("fp16",), layouts=("nchw",))
    assert done == (1, 0)
    assert {row["note"] for row in results.rows.values()} == {"does not fit in memory"}
    assert set(one_cell(results, DENSE, "fp16")) == {"torch", *sweep.candidates(DENSE, "forward", "fp16", "nchw")}
    assert results.troubles("digest") == []


def test_a_kernel_that_never_returns_ends_the_process(tmp_path, monkeypatch, forces, capfd):
    ended, seen = threading.Event(), []

    def end(status):
        seen.append((status, sweep.SweepStore(tmp_path, "test-1").lost("digest")))
        ended.set()

    class Waiting(Watching):
        def probe(self, call):
            before = len(self.forces)
            probe = super().probe(call)
            if "direct/thread_per_output" in self.forces[before:]:
                assert ended.wait(60)
            return probe

    monkeypatch.setattr(sweep.os, "_exit", end)
    some = {"precisions": ("fp32",), "layouts": ("nchw",), "hung_seconds": 0.5}
    run(tmp_path, [DENSE], Waiting(forces), **some)
    assert seen == [(runner.LOST, {"direct/thread_per_output": ("dense", "fp32", "nchw")})]
    assert "dense fp32 nchw: direct/thread_per_output: did not return within 0.5 s" in capfd.readouterr().err


def test_budget_and_resume(tmp_path):
    import time

    started = time.monotonic() - 100
    assert run(tmp_path, SMALL[:2], budget=50, started=started)[0] == (1, 15)
    assert run(tmp_path, SMALL[:2], resume=True)[0] == (15, 0)
    assert run(tmp_path, SMALL[:2], resume=True)[0] == (0, 0)
    assert run(tmp_path, SMALL[:1])[0] == (8, 0)


def test_sweeps_are_merged_as_sweeps(tmp_path):
    for folder, case in (("x", DENSE), ("y", DEPTHWISE)):
        run(tmp_path / folder, [case], precisions=("fp32",), digest=folder)
    folders = [str(tmp_path / folder) for folder in ("x", "y")]
    assert command_line.main(["merge", "--output", str(tmp_path / "all"), *folders]) == 0
    merged = sweep.SweepStore(tmp_path / "all", "test-1")
    assert {(k[0], merged.digest_of(k)) for k in merged.rows} == {("dense", "x"), ("depthwise", "y")}
    assert store.gpus(tmp_path / "all") == []


# The command


@pytest.fixture
def command_on_host(monkeypatch, tmp_path):
    """`python -m benchmarks sweep` with a stopwatch that counts; gives (status, store) for arguments."""

    def run_command(stopwatch, *arguments):
        stopwatch.__class__.__enter__ = lambda self: self
        stopwatch.__class__.__exit__ = lambda self, *exception: None
        stopwatch.ceilings = lambda: CEILINGS
        monkeypatch.setattr(timing, "Stopwatch", lambda row_us: stopwatch)
        status = command_line.main(["sweep", "--output", str(tmp_path), *arguments])
        return status, sweep.SweepStore(tmp_path, "test-1")

    monkeypatch.setattr(command_line, "need_gpu", lambda top: None)
    monkeypatch.setattr(timing, "describe_machine", lambda: MACHINE)
    monkeypatch.setattr(runner, "run", functools.partial(runner.run, device="cpu"))
    return run_command


def test_exit_status(command_on_host, forces, capsys, tmp_path):
    few = ("--cases", "dcgan.g1", "--precision", "tf32", "--layout", "nchw")
    assert command_on_host(Watching(forces), *few)[0] == 0
    bad = ("implicit_gemm_sm80/64x64",)
    status, results = command_on_host(Watching(forces, bad), *few)
    assert status == 1
    assert "  implicit_gemm_sm80/64x64 dcgan.g1 tf32 nchw: failed: CUDA error" in capsys.readouterr().out
    assert results.runs[-1]["command"] == f"python -m benchmarks sweep {' '.join(few)}"
    assert command_on_host(Watching(forces, bad, fatal=True), *few)[0] == runner.LOST == 3
    status, results = command_on_host(Watching(forces, bad, fatal=True), *few, "--resume")
    assert status == 1 and "ended the CUDA context" in capsys.readouterr().out
    # The reports of the other files do not take it for one of theirs.
    assert store.gpus(tmp_path) == []


# The report


def made_up(folder):
    """Two classes, two families: the choice is right in the one class and twice as slow in the other."""
    results = sweep.SweepStore(folder, "test-1")
    results.start_run(runner.new_run(MACHINE, CEILINGS, "digest", "python -m benchmarks sweep"))
    rows = []

    def row(case, configuration, us, estimate="", rel_l2="1e-7", **more):
        rows.append(
            {"case": case.case, "class": case.kind, "op": "forward", "precision": "fp32", "layout": "nchw"}
            | {"configuration": configuration, "us_median": us, "estimated_us": estimate, "floor_us": 50}
            | {"rel_l2": rel_l2, "note": ""} | more
        )  # fmt: skip

    row(DENSE, "torch", 400)
    row(DENSE, "a/one", 100, 80)
    row(DENSE, "a/two", 300, 90)
    row(DENSE, "b/one", 10, 85, rel_l2="0.5")  # fast and wrong
    row(DENSE, "b/two", 200, 100)
    row(DEPTHWISE, "torch", 900)
    row(DEPTHWISE, "a/one", 200, 60)
    row(DEPTHWISE, "a/two", 100, 70)
    row(DEPTHWISE, "b/one", "", 500, rel_l2="", note="failed: CUDA error: invalid argument")
    row(DEPTHWISE, "b/two", 5, 5, reservation="is less accurate")
    results.append(rows)
    return results


def test_report_of_made_up_rows(tmp_path, capsys):
    made_up(tmp_path)
    assert command_line.main(["sweep-report", str(tmp_path / "test-1-sweep.csv")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# Sweep on NVIDIA Test 1")
    lines = text.splitlines()
    header = next(line for line in lines if line.startswith("| class | family |"))
    names = [name.strip() for name in header.strip("|").split("|")]
    table = {}
    for line in lines[lines.index(header) + 2 :]:
        if not line:
            break
        values = dict(zip(names, (v.strip() for v in line.strip("|").split("|")), strict=True))
        table[values["class"], values["family"]] = list(values.values())[2:]
    # cells, fastest in, torch / best, choice within 10 %, choice / best, best / its estimate, best / floor
    assert table["all", "all"] == ["2", "2", "6.00x", "1 (50%)", "1.41x", "1.34x", "2.00 (2)"]
    assert table["dense stride 1", "all"] == ["1", "1", "4.00x", "1 (100%)", "1.00x", "1.25x", "2.00 (1)"]
    # The family's own choice is the wrong one, which has no figure.
    assert table["dense stride 1", "b"] == ["1", "0", "2.00x", "0 (0%)", "", "2.00x", "4.00 (1)"]
    assert table["depthwise", "a"] == ["1", "1", "9.00x", "0 (0%)", "2.00x", "1.43x", "2.00 (1)"]
    assert table["depthwise", "b"] == ["1", "0", "", "0 (0%)", "", "", ""]
    assert "**Wrong**: 1 rows of b/one in fp32 (error up to 5.0e-01): dense." in text
    assert "Only when forced, in no other figure here: 1 rows of b: is less accurate." in text
    assert "No figure: 1 rows of b/one: failed: CUDA error: invalid argument; depthwise." in text
    assert "| depthwise | depthwise | fp32 | nchw | a/one | 60 | 200 | a/two | 70 | 100 | 2.00x | 900 | 50 |" in text
    assert "| fp32 | nchw | 2 |" in text


def test_a_report_of_what_a_sweep_wrote(tmp_path):
    from benchmarks import sweep_report

    _, results = run(tmp_path, SMALL)
    text = sweep_report.text(results)
    for kind in {case.kind for case in SMALL}:
        assert f"| {kind} | all | " in text and f"| {kind} | direct | " in text


# On a GPU


@pytest.mark.gpu
def test_a_small_sweep_on_a_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.undo()  # the device and the forces are real
    few = ["--cases", "dcgan.g4", "--cases", "fsrcnn*", "--families", "direct", "--precision", "tf32,fp16"]
    assert command_line.main(["sweep", "--output", str(tmp_path), *few]) == 0
    name = store.slug(torch.cuda.get_device_name())
    results = sweep.SweepStore(tmp_path, name)
    assert {k[4] for k in results.rows} == {"torch", "direct/thread_per_output"}
    for row in results.rows.values():
        assert float(row["us_median"]) > 0 and row["note"] == "" and not sweep.is_wrong(row)
    assert convt._C.forced_configuration() == ""
    assert command_line.main(["sweep-report", str(tmp_path / f"{name}-sweep.csv")]) == 0
    assert "| all | direct |" in capsys.readouterr().out


def made_up_row(configuration, precision, layout, modelled, us, rel_l2="1e-7", case=None):
    return {
        "configuration": configuration, "op": "forward", "precision": precision, "layout": layout,
        "case": case or f"of {modelled}", "modelled_us": str(modelled), "us_median": str(us),
        "rel_l2": rel_l2, "rel_l2_torch": rel_l2,
    }  # fmt: skip


def made_up_scales(scale):
    """A configuration's, alike in all precisions and layouts."""
    from benchmarks import calibrate

    return dict.fromkeys(calibrate.NEUTRAL, (scale, 1.0))


def test_calibration_of_made_up_rows(tmp_path):
    """Rows that follow a law give that law; few rows are those of both layouts; what is wrong is left out."""
    from benchmarks import calibrate

    row = made_up_row
    sizes = [2.0**k for k in range(1, 12)] * 20
    rows = [row("a/one", "fp32", "nchw", m, 2 * m**0.97) for m in sizes]
    rows += [row("a/one", "bf16", "nhwc", m, 3 * m) for m in sizes]
    rows += [row("a/one", "tf32", "nchw", 100, 500, rel_l2="0.5"), row("torch", "fp32", "nchw", 1, 1)]
    ((name, of),) = calibrate.table(rows)
    assert name == "a/one"
    scale, exponent = of[("fp32",), "nchw"]
    assert exponent == pytest.approx(0.97, abs=0.001) and scale == pytest.approx(2, rel=0.01)
    assert of[("fp32",), "nhwc"] == of[("fp32",), "nchw"]
    assert of[("fp16", "bf16"), "nchw"] == pytest.approx((3, 1))
    assert of[("tf32",), "nchw"] == (1, 1)
    one_size = [row("a/one", "fp32", "nchw", 10, us) for us in (19, 20, 21)]
    (_, of), *_ = calibrate.table(one_size)
    assert of[("fp32",), "nchw"] == (pytest.approx(2, rel=0.01), 1)
    # A law that is far from the model's is not believed.
    (_, of), *_ = calibrate.table([row("a/one", "fp32", "nchw", m, m**0.7) for m in sizes])
    assert of[("fp32",), "nchw"][1] == calibrate.EXPONENTS[0]
    # What is far from the fastest of its cell may be left out.
    far = [row("a/two", "fp32", "nchw", m, (2.2 if m < 40 else 40) * m**0.97) for m in sizes]
    ((_, of), (_, two)) = calibrate.table(rows + far, near=1.3)
    assert of[("fp32",), "nchw"] == (scale, exponent)
    assert two[("fp32",), "nchw"] == (pytest.approx(2.2, rel=0.03), pytest.approx(0.97, abs=0.01))
    text = calibrate.text(calibrate.table(rows))
    assert '{"a/one", {{{2, 0.97}, {2, 0.97}}, {{1, 1}, {1, 1}}, {{3, 1}, {3, 1}}}},' in text


def test_a_calibration_is_renewed_for_some_families():
    from benchmarks import calibrate

    rows = [made_up_row(name, "fp32", "nchw", m, 2 * m) for name in ("a/one", "b/one") for m in (10.0, 100.0, 1000.0)]
    before = [(name, made_up_scales(3.0)) for name in ("a/one", "b/one", "c/one")]
    renewed = dict(calibrate.renewed(rows, before, ("a/",)))
    assert renewed["a/one"][("fp32",), "nchw"] == pytest.approx((2, 1))
    assert {name: renewed[name] for name in ("b/one", "c/one")} == dict(before[1:])


def test_a_calibration_changes_for_some_precisions_and_layouts():
    from benchmarks import calibrate

    before = [("a/one", made_up_scales(2.0)), ("b/one", made_up_scales(3.0))]
    after = [("a/one", made_up_scales(4.0)), ("c/one", made_up_scales(5.0))]
    result = dict(calibrate.restricted(before, after, ("tf32", "bf16"), ("nhwc",)))
    changed = {(("tf32",), "nhwc"), (("fp16", "bf16"), "nhwc")}
    for name, old, new in (("a/one", 2, 4), ("b/one", 3, 1), ("c/one", 1, 5)):
        assert result[name] == {key: (new if key in changed else old, 1) for key in calibrate.NEUTRAL}


def test_a_command_calibrates_some_precisions(tmp_path):
    """`--precision` leaves the file's other scales as they are."""
    results = sweep.SweepStore(tmp_path, "a-gpu")
    results.start_run({"digest": "of a build"})
    empty = dict.fromkeys(results.columns, "")
    sizes, precisions = (10.0, 100.0, 1000.0), ("fp32", "tf32")
    results.append([empty | made_up_row("direct/thread", p, "nchw", m, 2 * m) for m in sizes for p in precisions])
    output = tmp_path / "calibration.inc"
    arguments = ["calibrate", str(results.csv_path), "--output", str(output)]
    assert command_line.main(arguments) == 0
    assert '{"direct/thread", {{{2, 1}, {2, 1}}, {{2, 1}, {2, 1}}, {{1, 1}, {1, 1}}}},' in output.read_text()
    output.write_text(output.read_text().replace("{2, 1}", "{3, 1}"))
    assert command_line.main([*arguments, "--precision", "tf32", "--layout", "nhwc"]) == 0
    assert '{"direct/thread", {{{3, 1}, {3, 1}}, {{3, 1}, {2, 1}}, {{1, 1}, {1, 1}}}},' in output.read_text()


def test_refined_scales_choose_the_fastest():
    """Of two configurations the one is chosen that is faster, where scales can say so; others keep theirs."""
    from benchmarks import calibrate

    def row(case, configuration, modelled, us):
        return made_up_row(configuration, "tf32", "nchw", modelled, us, case=case)

    rows = []
    for n in range(20):
        size = 10.0 * (n + 1)
        # The model has both alike within 5 %, and b is half as fast; c is out of reach and right.
        rows += [row(f"case {n}", "b", 0.95 * size, 2 * size), row(f"case {n}", "a", size, size)]
        rows += [row(f"case {n}", "c", 9 * size, 9 * size)]
    key = ("tf32",), "nchw"
    start = [("a", made_up_scales(1.0))]
    refined = dict(calibrate.refined(rows, start))
    assert refined["b"][key][0] * 0.95 > refined["a"][key][0] * 1.02
    assert refined["c"][key] == (1, 1)
    assert all(abs(math.log(of[key][0])) <= calibrate.FARTHEST + 1e-6 for of in refined.values())
    assert all(of[("fp32",), "nchw"] == (1, 1) for of in refined.values())
    # What only a forced plan uses is nothing to choose.
    forced = [row(f"case {n}", "d", n + 1.0, n + 1.0) | {"reservation": "is less accurate"} for n in range(20)]
    assert dict(calibrate.refined(rows + forced, start)) == refined
    kept = dict(calibrate.refined(rows, start, families=("a", "c")))
    assert kept["b"][key] == (1, 1) and kept["a"][key][0] < 0.93
    # What is written is what is read; rows that change nothing are not.
    written = calibrate.text(sorted(refined.items()))
    again = dict(calibrate.read(written))
    assert set(again) == {"a", "b"} - {name for name, of in refined.items() if of[key] == (1, 1)}
    assert all(again[name][key] == pytest.approx(refined[name][key], rel=0.01) for name in again)


def test_the_planner_uses_the_calibration_that_is_compiled():
    """The ratio of estimate and model is the table's, for every configuration that was measured."""
    from benchmarks import calibrate

    numbers = dict(calibrate.read((Path(__file__).parents[1] / "csrc/plan/calibration.inc").read_text()))
    names = set(convt._C.configuration_names())
    assert set(numbers) <= names
    # Families whose models were fitted to measurements take none.
    assert len(numbers) > len(names) / 3
    seen = 0
    for case in (DENSE, DEPTHWISE):
        for precisions in calibrate.PRECISIONS:
            precision = precisions[0]
            for name, candidate in sweep.candidates(case, "forward", precision, "nchw").items():
                if name in numbers:
                    scale, exponent = numbers[name][precisions, "nchw"]
                    expected = scale * (candidate.modelled_seconds * 1e6) ** exponent
                    assert candidate.estimated_seconds * 1e6 == pytest.approx(expected)
                    seen += 1
    assert seen > 10
