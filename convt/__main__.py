"""``python -m convt``: proves on the reader's machine that convt computes what torch computes, and how fast."""

import argparse
import dataclasses
import fnmatch
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from . import _parity, _swap_model, build_info, conv_transpose2d, device_names, explain

PASSED, FAILED, BAD_ARGUMENTS, INTERRUPTED = 0, 1, 2, 130

# Of tables that are not printed to a terminal.
PLAIN_WIDTH = 160

# Plans are shown for these where no GPU is.
PLANNED_DEVICE = "h200"
PLANNED_DEVICE_SM80 = "a100"

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "complex32": torch.complex32,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line."""

    def __init__(self, **arguments):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **arguments)

    def error(self, message):
        self.exit(BAD_ARGUMENTS, f"{self.prog}: {' '.join(message.split())} (--help tells more)\n")


class BadArgumentsError(Exception):
    """Its message is the one line that is printed."""


class Report:
    """What is printed goes to stdout at once, and is kept as plain text for --output."""

    def __init__(self):
        plain = {"markup": False, "highlight": False, "emoji": False, "soft_wrap": False}
        # rich assumes 80 columns when the output is no terminal, which would break the table's lines.
        self.screen = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, **plain)
        self.text = io.StringIO()
        self.copy = Console(file=self.text, width=PLAIN_WIDTH, color_system=None, force_terminal=False, **plain)

    def print(self, *what) -> None:
        self.screen.print(*what)
        self.copy.print(*what)


def code_for(archs: Sequence[str], capability: tuple[int, int]) -> str | None:
    """Which of the binary's architectures the driver picks for a GPU, as it does: the best machine code, else PTX.

    Machine code runs within its major version, on its own or a later minor one; "a" code on its very version only, "f"
    code within its family; PTX on anything later.
    """
    code: list[tuple[tuple[int, int], str, str]] = []
    ptx: list[tuple[tuple[int, int], str]] = []
    for arch in archs:
        match = re.fullmatch(r"(\d+)\.(\d+)([af]?)(\+PTX)?", arch)
        if match is None:
            continue
        version, suffix = (int(match[1]), int(match[2])), match[3]
        if version == capability or (suffix != "a" and version[0] == capability[0] and version <= capability):
            code.append((version, suffix, arch.removesuffix("+PTX")))
        elif match[4] and not suffix and version <= capability:
            ptx.append((version, arch.removesuffix("+PTX")))
    if code:
        return max(code)[2]
    return f"{max(ptx)[1]} (PTX, compiled by the driver)" if ptx else None


def driver_version() -> str:
    """The NVIDIA driver's version; torch itself does not know it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown (no nvidia-smi)"
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return "unknown (nvidia-smi fails)"
    return lines[0] if lines else "unknown"


def no_gpu_reason() -> str | None:
    """Why no kernel of convt can run here, or None if one can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA GPU"
    if build_info()["cuda"] is None:
        return f"this convt was built without CUDA ({build_info()['cuda_note']}); build it again with CONVT_CUDA=1"
    return None


def facts() -> dict[str, str]:
    """What convt runs on, for people."""
    built = build_info()
    version, cudnn = torch.__version__, torch.backends.cudnn.version()
    result = {
        "convt": f"{built['version']}, built for torch {built['torch']}",
        "source digest": built["source_digest"],
        "built with": built["cuda_note"] if built["cuda"] else f"no CUDA, for the CPU only: {built['cuda_note']}",
        "architectures": ", ".join(built["archs"]) or "none",
        "torch": f"{version}, CUDA {torch.version.cuda or 'none'}, cuDNN {cudnn or 'none'}",
    }
    if not torch.cuda.is_available():
        result["GPU"] = "none: torch sees no CUDA GPU"
        result["CPU"] = f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
        return result
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        runs = code_for(built["archs"], (p.major, p.minor)) or "NOTHING: no architecture of this build suits it"
        result[f"GPU {i}"] = (
            f"{p.name}, compute capability {p.major}.{p.minor}, {p.multi_processor_count} multiprocessors, "
            f"{p.total_memory / 2**30:.0f} GiB; runs the code for {runs}"
        )
    result["driver"] = driver_version()
    return result


def print_facts(report: Report) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in facts().items():
        table.add_row(name, value)
    report.print(table)


def pair(values: tuple[int, int]) -> str:
    return f"{values[0]}x{values[1]}"


def layer_table(cases: list[_parity.Case]) -> Table:
    table = Table(title="Layers (pairs are height x width)", title_justify="left")
    for name in ("layer", "input", "Cout", "kernel", "stride", "pad", "out pad", "dil", "groups", "bias", "float64"):
        table.add_column(name, no_wrap=name == "layer")
    table.add_column("source", overflow="fold")
    for c in cases:
        pairs = map(pair, (c.kernel_size, c.stride, c.padding, c.output_padding, c.dilation))
        table.add_row(
            c.name, "x".join(map(str, c.input_shape)), str(c.out_channels), *pairs, str(c.groups),
            "yes" if c.bias else "no", f"{len(c.referenced())} of {c.batch}", c.source.partition(":")[0],
        )  # fmt: skip
    return table


def result_table(rows: list[_parity.Row], timed: bool) -> Table:
    table = Table(title="Parity and time" if timed else "Parity", title_justify="left")
    for name in ("layer", *([] if timed else ["computed by"]), "dtype", "layout"):
        table.add_column(name, no_wrap=True)
    for name in ("rel L2 convt", "torch", "max err convt", "torch"):
        table.add_column(name, justify="right", no_wrap=True)
    if timed:
        for name in ("ms convt", "ms torch", "torch/convt"):
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for i, row in enumerate(rows):
        cells = [row.case.name, *([] if timed else [row.subject]), row.precision, row.layout]
        for k in range(2):
            cells += [f"{e[k]:.2e}" if e is not None else "-" for e in (row.ours, row.theirs)]
        if timed:
            both = row.our_ms is not None and row.their_ms is not None
            times = (row.our_ms, row.their_ms, row.their_ms / row.our_ms) if both else ()
            cells += [f"{t:.3f}" for t in times] or ["-"] * 3
        last = i + 1 == len(rows) or rows[i + 1].case.name != row.case.name
        verdict = Text("ok", "green") if row.passed else Text("FAIL", "bold red")
        table.add_row(*cells, verdict, end_section=last)
    return table


def plan_table() -> Table:
    """What a GPU would run for the target layers."""
    table = Table(title="What a GPU would run (convt.explain; nothing of this ran here)", title_justify="left")
    for name in ("layer", "on", "dtype", "GFLOP", "MB", "kernel", "blocks", "threads"):
        right = name in ("GFLOP", "MB", "blocks", "threads")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    targets = [(case, case.name, PLANNED_DEVICE) for case in _parity.TARGETS]
    targets.insert(1, (_parity.TARGETS[0], f"{_parity.TARGETS[0].name} on sm_80", PLANNED_DEVICE_SM80))
    for case, name, device in targets:
        for precision, dtype in _parity.PRECISIONS.items():
            plan = _parity.planned(case, dtype, device)
            table.add_row(
                name, device, precision, f"{plan.useful_flops / 1e9:.1f}", f"{plan.compulsory_bytes / 1e6:.0f}",
                f"{plan.algorithm}/{plan.configuration}", str(plan.grid), str(plan.block),
            )  # fmt: skip
        table.add_section()
    return table


def sm80_note() -> str:
    """Why "kb69 on sm_80" is no row of its own: the driver, not convt, picks the machine code."""
    archs = build_info()["archs"]
    p = torch.cuda.get_device_properties(torch.cuda.current_device())
    runs = code_for(archs, (p.major, p.minor))
    note = f"kb69 on sm_80 is the layer kb69 run by sm_80 code, and not listed by itself: this GPU runs {runs} code"
    if runs is not None and runs.startswith("8.0"):
        return note + ", so the rows of kb69 are those of kb69 on sm_80"
    if any(arch.startswith("8.0") for arch in archs):
        return note + ", which the driver prefers to the sm_80 code that the binary has too"
    return note + f"; the binary was built for {', '.join(archs)}"


def choose_cases(arguments: argparse.Namespace) -> list[_parity.Case]:
    cases = [c for c in _parity.CASES if c.quick or not arguments.quick]
    if arguments.only is not None:
        cases = [c for c in cases if fnmatch.fnmatch(c.name, f"*{arguments.only}*")]
    if not cases:
        names = ", ".join(c.name for c in _parity.CASES if c.quick or not arguments.quick)
        raise BadArgumentsError(f"--only {arguments.only}: no layer has that in its name; there are {names}")
    return cases


def collect(cases: list[_parity.Case], device: torch.device, subjects: dict, timer) -> tuple[list[_parity.Row], bool]:
    """All rows, with a progress bar on stderr; and whether Ctrl-C ended it before that."""
    rows: list[_parity.Row] = []
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    total = len(cases) * len(_parity.PRECISIONS) * len(_parity.LAYOUTS) * len(subjects)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        try:
            for case in cases:
                progress.update(task, description=case.name)
                for row in _parity.run_case(case, device, subjects, timer):
                    rows.append(row)
                    progress.advance(task)
                if device.type == "cuda":
                    torch.cuda.empty_cache()
        except KeyboardInterrupt:
            return rows, True
    return rows, False


def without_folder(arguments: argparse.Namespace) -> list[str]:
    """The command line with only the name of --output, whose folder means nothing elsewhere."""
    output = arguments.output or ""
    name = os.path.basename(output)
    return [a.removesuffix(output) + name if a.endswith(output) else a for a in arguments.command_line]


def main_job(arguments: argparse.Namespace) -> int:
    cases = choose_cases(arguments)
    if arguments.output is not None:
        try:
            # Before the work rather than after it.
            with open(arguments.output, "a", encoding="utf-8"):
                pass
        except OSError as error:
            raise BadArgumentsError(f"--output {arguments.output}: {error.strerror}") from None
    report, no_gpu = Report(), no_gpu_reason()
    report.print(f"$ {shlex.join(['python', '-m', 'convt', *without_folder(arguments)])}")
    print_facts(report)
    report.print()
    if no_gpu is None:
        device = torch.device("cuda", torch.cuda.current_device())
        timer = _parity.Timer(device, *((50, 5) if arguments.quick else (400, 20)))
        subjects: dict[str, _parity.Subject] = {"GPU": _parity.operator}
        where = f"on {torch.cuda.get_device_name(device)}"
    else:
        device, timer = torch.device("cpu"), None
        subjects = {"CPU operator": _parity.operator, "direct, on CPU": _parity.direct_on_host}
        where = "on the CPU"
        report.print(
            f"NO GPU KERNEL IS RUN: {no_gpu}.\n"
            "What is tested instead, at reduced sizes: the CPU path of the operator (ATen computes it), and the\n"
            "arithmetic of the direct CUDA kernels compiled for the CPU. Run this again on a machine with a GPU.\n"
        )
        cases = [case.reduced() for case in cases]
    report.print(
        f"convt.ConvTranspose2d and torch.nn.ConvTranspose2d with the same parameters {where}, TF32 off, both against\n"
        "float64 from the inputs as rounded to the dtype. Of large layers, some batch elements (first and last among\n"
        "them) are computed in float64, the others compared with torch's; see the column 'float64'.\n"
        "A row passes if relative L2 is at most 1.25 times torch's (or half an ulp), the largest error at most twice\n"
        "torch's plus an ulp of the largest output, nothing is NaN or inf, and shape, dtype and strides are torch's."
    )
    if timer is not None:
        report.print(
            "The output's memory holds NaN before the call. Times: CUDA events, L2 flushed, median of up to\n"
            f"{timer.most} calls, fewer where they are slow."
        )
    report.print()
    report.print(layer_table(cases))
    if timer is not None:
        report.print(sm80_note())
    report.print()

    rows, interrupted = collect(cases, device, subjects, timer)
    if rows:
        report.print(result_table(rows, timed=timer is not None))
    for row in rows:
        for problem in row.problems:
            report.print(f"FAIL {row.case.name} {row.subject} {row.precision} {row.layout}: {problem}")
    missed = sum(not row.poisoned for row in rows)
    if missed:
        report.print(f"In {missed} rows the output came from other memory than that filled with NaN.")
    if no_gpu is not None:
        report.print(plan_table())
        report.print("python -m convt explain --help: the reasons, for any layer and GPU.")
        report.print("NO GPU KERNEL WAS RUN.")
    failed = sum(not row.passed for row in rows)
    if interrupted:
        report.print("INTERRUPTED: the layers that are missing above were not tested.")
    report.print(f"{len(rows) - failed} passed, {failed} failed")
    if arguments.output is not None:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.writelines(f"{line.rstrip()}\n" for line in report.text.getvalue().splitlines())
    if interrupted:
        return INTERRUPTED
    return FAILED if failed else PASSED


def add_main_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="a few layers, fewer repeats")
    parser.add_argument("--only", metavar="PATTERN", help="only layers with PATTERN in their name; * and ? are wild")
    parser.add_argument("--output", metavar="FILE", help="write all that is printed to FILE too, as plain text")


def info(arguments: argparse.Namespace) -> int:
    report = Report()
    print_facts(report)
    return PASSED


def integers(least: int, most: int) -> Callable[[str], list[int]]:
    """A parser of "2" or "2,3"; int64 is what the operators take."""

    def parse(text: str) -> list[int]:
        count = f"{least} or {most}"
        try:
            values = [int(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {count} integers with commas between") from None
        if len(values) not in (least, most):
            raise argparse.ArgumentTypeError(f"{text!r} has {len(values)} integers, not {count}")
        if not all(-(2**63) <= value < 2**63 for value in values):
            raise argparse.ArgumentTypeError(f"{text!r} does not fit into 64 bits")
        return values

    return parse


def integer(text: str) -> int:
    return integers(1, 1)(text)[0]


def explain_layer(arguments: argparse.Namespace) -> int:
    a = arguments
    if len(a.input) == 3:
        if a.in_channels is None:
            raise BadArgumentsError("--in-channels is needed when --input is N,H,W")
        shape = [a.input[0], a.in_channels, *a.input[1:]]
    else:
        shape = a.input
    in_channels = shape[1] if a.in_channels is None else a.in_channels
    kernel = a.kernel_size * 2 if len(a.kernel_size) == 1 else a.kernel_size
    if a.groups < 1 or a.out_channels % a.groups != 0:
        raise BadArgumentsError(f"--groups {a.groups} does not divide --out-channels {a.out_channels}")
    device = a.device or (PLANNED_DEVICE if no_gpu_reason() else None)
    size = {"dtype": DTYPES[a.dtype], "device": "meta", "memory_format": _parity.LAYOUTS[a.layout.upper()]}
    try:
        x = torch.empty(shape, **size)
        weight = torch.empty((in_channels, a.out_channels // a.groups, *kernel), **size)
        bias = torch.empty(a.out_channels, dtype=size["dtype"], device="meta") if a.bias else None
        layer = (a.stride, a.padding, a.output_padding, a.groups, a.dilation)
        how = {"device": device, "operation": a.operation}
        plan = explain(x, weight, bias, *layer, device=device)
        if a.operation != "forward":
            y = conv_transpose2d(x, weight, bias, *layer)
        if a.operation == "input_grad":
            plan = explain(y, weight, None, *layer, **how, input_size=shape[2:])
        elif a.operation == "weight_grad":
            plan = explain(x, y, None, *layer, **how, kernel_size=kernel)
    # The arguments are integers that the parser has let through; what convt refuses is theirs.
    except (RuntimeError, ValueError, OverflowError) as error:
        raise BadArgumentsError(_parity.one_line(error)) from None
    print(str(plan).rstrip())
    return PASSED


def add_explain(parser: argparse.ArgumentParser) -> None:
    one_or_two = integers(1, 2)
    add = parser.add_argument
    add("--input", required=True, type=integers(3, 4), metavar="N,C,H,W", help="size of the input; or N,H,W")
    add("--in-channels", type=integer, metavar="C", help="default: that of --input")
    add("--out-channels", required=True, type=integer, metavar="C")
    add("--kernel-size", required=True, type=one_or_two, metavar="K[,K]", help="height,width, or one for both")
    for name, default in (("stride", 1), ("padding", 0), ("output-padding", 0), ("dilation", 1)):
        add(f"--{name}", type=one_or_two, default=[default], metavar="S[,S]", help=f"default {default}")
    add("--groups", type=integer, default=1, metavar="G", help="default 1")
    add("--bias", action="store_true", help="with a bias")
    add("--dtype", choices=DTYPES, default="fp32", help="default fp32")
    add("--layout", choices=("nchw", "nhwc"), default="nchw", help="of input and weight in memory; default nchw")
    add("--device", choices=device_names(), help=f"default: the GPU here, else {PLANNED_DEVICE}")
    operations = ("forward", "input_grad", "weight_grad")
    add("--operation", choices=operations, default="forward", help="or the gradient of it; default forward")


def swap_model(arguments: argparse.Namespace) -> int:
    try:
        *lines, agree = _swap_model.swap_and_compare(arguments.factory, arguments.input)
    except _swap_model.SwapError as error:
        raise BadArgumentsError(str(error)) from None
    print(*lines, sep="\n")
    print("same outputs" if agree else "NOT THE SAME: no layer was swapped, or the outputs differ")
    return PASSED if agree else FAILED


def shape(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 1,3,224,224") from None


def add_swap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("factory", metavar="MODULE:FACTORY", help="makes the model, or (model, (input, ...))")
    parser.add_argument(
        "--input", action="append", type=shape, default=[], metavar="N,C,H,W", help="shape of a random input; repeat it"
    )


@dataclasses.dataclass(frozen=True)
class Command:
    """A subcommand: how it is called, what --help says, what it does."""

    name: str
    summary: str
    epilog: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS = (
    Command(
        "info",
        "Prints what convt was built from and what it runs on: versions, architectures, source digest, GPU, driver.",
        "example:\n  python -m convt info\n\nexit code: 0",
        lambda parser: None,
        info,
    ),
    Command(
        "explain",
        "Prints which kernel convt would run for a layer on a GPU, and why not the others. Nothing is computed, and\n"
        "no GPU need be present.",
        "example: the second upsampling layer of CycleGAN in fp16 on an A100\n"
        "  python -m convt explain --input 1,128,128,128 --out-channels 64 --kernel-size 3 --stride 2 --padding 1 \\\n"
        "      --output-padding 1 --bias --dtype fp16 --device a100\n\n"
        "exit codes: 0; 2 for bad arguments, those that the layer itself would refuse included",
        add_explain,
        explain_layer,
    ),
    Command(
        "swap",
        "Builds your model, swaps its ConvTranspose2d layers for convt's, and compares the outputs and, on a GPU, the\n"
        "time of a forward call. Nothing of yours is changed.",
        "example: a factory without arguments that returns a module\n"
        "  python -m convt swap my_project.models:make_generator --input 16,100,1,1\n\n"
        "exit codes: 0 the outputs agree; 1 they do not, or nothing was swapped; 2 bad arguments",
        add_swap,
        swap_model,
    ),
)


def make_parser() -> Parser:
    parser = Parser(
        prog="python -m convt",
        description=(
            "Without a command: the proof on this machine. It compares convt.ConvTranspose2d with\n"
            "torch.nn.ConvTranspose2d and with float64, in fp16, bf16, fp32 and fp64, NCHW and NHWC, on the layers of\n"
            "published models, and times both. This takes a few minutes on a GPU.\n"
            "Without a GPU it compares what a CPU can compute, at small sizes, in a minute, and shows what a GPU\n"
            "would run."
        ),
        epilog=(
            "examples:\n"
            "  python -m convt                                 the whole proof\n"
            "  python -m convt --quick --only kb75             a part of it\n"
            "  python -m convt --output results.txt            kept in a file, too\n\n"
            "exit codes: 0 all passed; 1 a comparison failed; 2 bad arguments; 130 interrupted"
        ),
    )
    add_main_job(parser)
    parser.set_defaults(run=main_job, parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name, help=command.summary.split(":")[0].split(".")[0].replace("\n", " "),
            description=command.summary, epilog=command.epilog,
        )  # fmt: skip
        command.add_arguments(sub)
        sub.set_defaults(run=command.run, parser=sub)
    return parser


def main(command_line: Sequence[str] | None = None) -> int:
    command_line = sys.argv[1:] if command_line is None else list(command_line)
    arguments = make_parser().parse_args(command_line)
    arguments.command_line = command_line
    try:
        return arguments.run(arguments)
    except BadArgumentsError as error:
        arguments.parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
