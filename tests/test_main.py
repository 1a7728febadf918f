"""``python -m convt``: the command line, the pass rule, and that a wrong result does not pass."""

import dataclasses
import math
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import convt
from convt import __main__ as cli
from convt import _parity

ROOT = Path(__file__).parent.parent


def run(*arguments, **environment):
    """The process on a machine whose GPUs, if it has any, are hidden."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    command = [sys.executable, "-m", "convt", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=300)


def error_of(capsys, *arguments):
    """What a refused command line prints on stderr."""
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(cli, "no_gpu_reason", lambda: "this test hides the GPU")


LAYER = ["--input", "1,4,8,8", "--out-channels", "6", "--kernel-size", "3"]


@pytest.mark.parametrize("command", [[], *([c.name] for c in cli.COMMANDS)], ids=" ".join)
def test_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "example" in text
    assert "exit code" in text


def test_info():
    done = run("info")
    assert done.returncode == 0, done.stderr
    assert convt.build_info()["source_digest"] in done.stdout
    assert torch.__version__ in done.stdout
    assert "GPU" in done.stdout


def test_quick_run_without_a_gpu(tmp_path):
    output = tmp_path / "results.txt"
    done = run("--quick", "--only", "kb75", "--output", str(output), FORCE_COLOR="1")
    assert done.returncode == 0, done.stdout + done.stderr
    # Two layers, four precisions, two layouts, computed by the operator and by the direct kernels' host build.
    assert done.stdout.splitlines()[-1].endswith("32 passed, 0 failed")
    assert "NO GPU KERNEL" in done.stdout
    text = output.read_text()
    assert text.startswith("$ python -m convt --quick --only kb75 --output results.txt\n")
    assert convt.build_info()["source_digest"] in text
    assert "kb69 on sm_80" in text
    assert "\x1b" not in text
    assert "32 passed, 0 failed" in text
    assert max(map(len, text.splitlines())) <= cli.PLAIN_WIDTH


def test_piped_output_is_plain():
    done = run("--quick", "--only", "gtcrn")
    assert "\x1b" not in done.stdout
    assert any(len(line) >= 120 for line in done.stdout.splitlines()), "tables are not squeezed into 80 columns"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--bogus"], "--bogus"),
        (["nonsense"], "nonsense"),
        (["--only", "no-such-layer"], "kb69"),
        (["--output", "no/such/folder/file"], "No such file"),
        (["info", "--bogus"], "--bogus"),
        (["explain"], "--input"),
        (["explain", *LAYER, "--input", "1,8,8"], "--in-channels"),
        (["explain", *LAYER, "--input", "8,8"], "3 or 4"),
        (["explain", *LAYER, "--kernel-size", "3,3,3"], "1 or 2"),
        (["explain", *LAYER, "--kernel-size", "three"], "three"),
        (["explain", *LAYER, "--stride", str(2**63)], "64 bits"),
        (["explain", *LAYER, "--device", "abacus"], "h200"),
        (["explain", *LAYER, "--dtype", "int8"], "fp16"),
        # What convt itself refuses.
        (["explain", *LAYER, "--stride", "0"], "stride"),
        (["explain", *LAYER, "--padding", "-1"], "padding"),
        (["explain", *LAYER, "--output-padding", "1"], "output padding"),
        (["explain", *LAYER, "--groups", "3"], "groups"),
        (["explain", *LAYER, "--groups", "0"], "groups"),
        (["explain", *LAYER, "--groups", "4"], "--groups 4"),
        (["explain", *LAYER, "--in-channels", "5"], "channels"),
        (["explain", *LAYER, "--padding", "99"], "too small"),
        (["explain", *LAYER, "--stride", str(2**62)], "overflow"),
        (["explain", *LAYER, "--input", "1,4,9999999999,9999999999"], "overflow"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_arguments_get_one_line(arguments, says, capsys):
    error = error_of(capsys, *arguments)
    assert error.count("\n") == 1
    assert error.startswith("python -m convt")
    assert says in error


def test_bad_arguments_of_the_process():
    done = run("explain", *LAYER, "--stride", "0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("operation", ["forward", "input_grad", "weight_grad"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_explain_is_the_plan_of_the_layer(operation, layout, capsys):
    arguments = ["--input", "2,9,7", "--in-channels", "4", "--out-channels", "6", "--kernel-size", "3,2"]
    arguments += ["--stride", "2,3", "--padding", "1,0", "--output-padding", "1", "--dilation", "2", "--groups", "2"]
    arguments += ["--dtype", "fp16", "--device", "a100", "--operation", operation, "--layout", layout]
    assert cli.main(["explain", *arguments]) == 0
    memory_format = _parity.LAYOUTS[layout.upper()]
    x = torch.empty(2, 4, 9, 7, dtype=torch.float16, device="meta").contiguous(memory_format=memory_format)
    w = torch.empty(4, 3, 3, 2, dtype=torch.float16, device="meta").contiguous(memory_format=memory_format)
    layer = {"stride": (2, 3), "padding": (1, 0), "output_padding": 1, "dilation": 2, "groups": 2}
    y = convt.conv_transpose2d(x, w, **layer)
    how = {"device": "a100", "operation": operation}
    if operation == "forward":
        plan = convt.explain(x, w, None, **layer, **how)
    elif operation == "input_grad":
        plan = convt.explain(y, w, None, **layer, **how, input_size=(9, 7))
    else:
        plan = convt.explain(x, y, None, **layer, **how, kernel_size=(3, 2))
    assert capsys.readouterr().out.strip() == str(plan).strip()


def test_explain_takes_a_gpu_that_is_not_here(no_gpu, capsys):
    assert cli.main(["explain", *LAYER]) == 0
    assert "h200" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("archs", "capability", "runs"),
    [
        (["9.0a"], (9, 0), "9.0a"),
        (["9.0a"], (10, 0), None),
        (["8.0+PTX", "9.0a"], (9, 0), "9.0a"),
        (["8.0+PTX", "9.0a"], (8, 6), "8.0"),
        (["8.0+PTX", "9.0a"], (12, 0), "8.0 (PTX, compiled by the driver)"),
        (["8.0+PTX"], (9, 0), "8.0 (PTX, compiled by the driver)"),
        (["8.0", "8.6"], (8, 9), "8.6"),
        (["8.6"], (8, 0), None),
        (["9.0", "9.0a"], (9, 0), "9.0a"),
        (["10.0f"], (10, 3), "10.0f"),
        ([], (9, 0), None),
    ],
)
def test_the_code_that_a_gpu_runs(archs, capability, runs):
    assert cli.code_for(archs, capability) == runs


# --- the comparison ---


def floors(dtype=torch.float16, products=64, largest=1.0):
    return _parity.Floors.of(dtype, products, largest)


@pytest.mark.parametrize(
    ("ours", "theirs", "passes"),
    [
        ((1e-3, 1e-2), (1e-3, 1e-2), True),
        ((1.2e-3, 1.9e-2), (1e-3, 1e-2), True),
        ((1.3e-3, 1e-2), (1e-3, 1e-2), False),
        ((1e-3, 2.2e-2), (1e-3, 1e-2), False),
        # Rounding is allowed where torch happens to be exact; more is not.
        ((2e-4, 5e-4), (0.0, 0.0), True),
        ((9e-4, 5e-4), (0.0, 0.0), False),
        ((2e-4, 2e-3), (0.0, 0.0), False),
        ((math.nan, math.nan), (1e-3, 1e-2), False),
        ((math.inf, math.inf), (math.inf, math.inf), False),
        ((1e-3, 1e-2), (math.nan, math.nan), False),
    ],
)
def test_the_rule(ours, theirs, passes):
    problems = _parity.problems_of(_parity.Errors(*ours), _parity.Errors(*theirs), floors())
    assert (problems == []) is passes


def test_the_floor_of_half_precision_does_not_grow_with_the_reduction():
    assert floors(products=10**6).relative_l2 == pytest.approx(torch.finfo(torch.float16).eps / 2, rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_bad_element_shows(value):
    reference = torch.ones(3, 5, dtype=torch.float64)
    result = reference.clone()
    deviation = _parity.Deviation()
    deviation.add(result, reference)
    assert deviation.errors() == (0.0, 0.0)
    result[1, 2] = value
    deviation.add(result, reference)
    deviation.add(reference, reference)
    assert not any(map(math.isfinite, deviation.errors()))


SMALL = _parity.Case("small", 6, 4, 5, 6, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2, bias=True)


def rows_of(subject, case=SMALL):
    rows = list(_parity.run_case(case, torch.device("cpu"), {"subject": subject}))
    assert [(row.precision, row.layout) for row in rows] == [
        (p, n) for p in _parity.PRECISIONS for n in _parity.LAYOUTS
    ]
    return rows


def wrong_value(problem, x):
    y = problem.theirs(x)
    y[-1, -1, -1, -1] += 0.25
    return y


def wrong_everywhere_by_two_ulps(problem, x):
    return problem.theirs(x) * (1 + 2 * torch.finfo(x.dtype).eps)


def flipped(problem, x):
    y = problem.theirs(x)
    return torch.empty_like(y).copy_(y.flip(-1))


def not_written(problem, x):
    y = problem.theirs(x)
    y[0, 1, 2, 3] = math.nan
    return y


def other_strides(problem, x):
    y = problem.theirs(x)
    return y.contiguous(
        memory_format=torch.contiguous_format if y.is_contiguous(memory_format=torch.channels_last)
        else torch.channels_last
    )  # fmt: skip


def other_shape(problem, x):
    return problem.theirs(x)[..., :-1]


def other_dtype(problem, x):
    return problem.theirs(x).to(torch.float32 if x.dtype != torch.float32 else torch.float64)


def raises(problem, x):
    raise RuntimeError("first line\nC++ stack")


def without_bias(problem, x):
    y = problem.theirs(x)
    return y - problem.theirs.bias.view(-1, 1, 1)


WRONG = (
    wrong_value, wrong_everywhere_by_two_ulps, flipped, not_written, other_strides, other_shape, other_dtype, raises,
    without_bias,
)  # fmt: skip


@pytest.mark.parametrize("subject", WRONG, ids=lambda f: f.__name__)
def test_a_wrong_result_fails_in_every_row(subject):
    assert not any(row.passed for row in rows_of(subject))


@pytest.mark.parametrize("subject", [_parity.operator, _parity.direct_on_host], ids=lambda f: f.__name__)
@pytest.mark.parametrize("batched", [True, False])
def test_a_right_result_passes(subject, batched):
    case = SMALL if batched else dataclasses.replace(SMALL, batch=1, batched=False)
    assert [row.problems for row in rows_of(subject, case)] == [[]] * 8


@pytest.mark.parametrize("element", range(6))
def test_a_wrong_batch_element_without_a_reference_fails(element, monkeypatch):
    monkeypatch.setattr(_parity, "REFERENCE_MACS", 1)
    assert SMALL.referenced() == [0, 5]

    def wrong(problem, x):
        y = problem.theirs(x)
        y[element] *= 1.05
        return y

    assert all(row.passed for row in rows_of(_parity.operator))
    assert not any(row.passed for row in rows_of(wrong))


def test_an_exception_is_a_row_that_names_it_in_one_line():
    assert {tuple(row.problems) for row in rows_of(raises)} == {("RuntimeError: first line",)}


def test_exit_code_of_a_failure(no_gpu, monkeypatch, capsys):
    monkeypatch.setattr(_parity, "direct_on_host", wrong_value)
    assert cli.main(["--quick", "--only", "cyclegan"]) == 1
    printed = capsys.readouterr().out
    assert "8 passed, 8 failed" in printed
    assert "FAIL cyclegan.up2 direct, on CPU fp64 NHWC: relative L2" in printed


def test_interrupted(no_gpu, monkeypatch, capsys):
    def interrupt(problem, x):
        if x.dtype == torch.float32:
            raise KeyboardInterrupt
        return problem.theirs(x)

    monkeypatch.setattr(_parity, "direct_on_host", interrupt)
    assert cli.main(["--quick", "--only", "cyclegan"]) == 130
    printed = capsys.readouterr().out
    assert "INTERRUPTED" in printed
    # fp16 and bf16 by both, and fp32 NCHW by the operator.
    assert "9 passed, 0 failed" in printed


def test_cases_cover_what_they_claim():
    names = [case.name for case in _parity.CASES]
    assert len(set(names)) == len(names)
    for case in _parity.CASES:
        for variant in (case, case.reduced()):
            module = variant.module(torch.nn.ConvTranspose2d, device="meta", dtype=torch.float16)
            y = module(torch.empty(variant.input_shape, device="meta", dtype=torch.float16))
            assert y.shape[-2:] == variant.output_size
            assert y.numel() > 0
        # A reduction changes the size and not the kind.
        kept = ("kernel_size", "stride", "padding", "output_padding", "dilation", "bias", "batched")
        assert all(getattr(case, name) == getattr(case.reduced(), name) for name in kept)
        assert case.reduced().macs <= 8_000_000


@pytest.mark.parametrize(
    ("case", "products"),
    [
        (_parity.Case("k2s2", 1, 8, 4, 4, 4, (2, 2), stride=(2, 2)), 8),
        (_parity.Case("k3s2", 1, 8, 4, 4, 4, (3, 3), stride=(2, 2)), 32),
        (_parity.Case("even dilation", 1, 8, 4, 4, 4, (3, 3), stride=(2, 2), dilation=(2, 2)), 72),
        (_parity.Case("groups", 1, 8, 4, 4, 4, (3, 3), groups=4), 18),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_products_per_output(case, products):
    assert case.products == products
    ones = torch.ones(1, case.in_channels, 9, 9)
    weight = torch.ones(case.in_channels, case.out_channels // case.groups, *case.kernel_size)
    y = convt.conv_transpose2d(ones, weight, None, case.stride, 0, 0, case.groups, case.dilation)
    assert y.amax().item() == products


@pytest.mark.parametrize(
    ("archs", "capability", "says"),
    [
        (["9.0a"], (9, 0), "built for 9.0a"),
        (["8.0+PTX", "9.0a"], (9, 0), "prefers"),
        (["8.0+PTX"], (9, 0), "so the rows of kb69 are"),
        (["8.0+PTX", "9.0a"], (8, 0), "so the rows of kb69 are"),
    ],
)
def test_why_kb69_on_sm80_is_no_row_of_its_own(archs, capability, says, monkeypatch):
    gpu = types.SimpleNamespace(major=capability[0], minor=capability[1])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(cli, "build_info", lambda: {"archs": archs})
    assert says in cli.sm80_note()


def test_the_table_of_a_gpu():
    errors = _parity.Errors(1e-4, 2e-3)
    rows = [
        _parity.Row(SMALL, "GPU", "fp16", "NCHW", errors, errors, 2.0, 5.0),
        _parity.Row(SMALL, "GPU", "fp16", "NHWC", problems=["out of memory"]),
    ]
    report = cli.Report()
    report.print(cli.result_table(rows, timed=True))
    first, second = (line for line in report.text.getvalue().splitlines() if "fp16" in line)
    cells = [cell.strip() for cell in first.strip("│").split("│")]
    assert cells[3:] == ["1.00e-04", "1.00e-04", "2.00e-03", "2.00e-03", "2.000", "5.000", "2.500", "ok"]
    assert "FAIL" in second


@pytest.mark.gpu
def test_quick_run_on_a_gpu(capsys, tmp_path):
    output = tmp_path / "results.txt"
    assert cli.main(["--quick", "--only", "gtcrn", "--output", str(output)]) == 0, capsys.readouterr().out
    text = output.read_text()
    assert "8 passed, 0 failed" in text
    assert torch.cuda.get_device_name() in text
    assert "NO GPU KERNEL" not in text


@pytest.mark.gpu
def test_an_element_that_a_kernel_leaves_out_is_poisoned():
    """The output's memory is the block that was filled with NaN, for a result that is allocated and never written."""

    def never_written(problem, x):
        case = problem.case
        return torch.empty((case.batch, case.out_channels, *case.output_size), dtype=x.dtype, device=x.device)

    rows = list(_parity.run_case(SMALL, torch.device("cuda"), {"subject": never_written}))
    assert all(row.poisoned for row in rows)
    assert all("the result has NaN or inf" in row.problems for row in rows)
