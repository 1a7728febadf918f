"""The command line; ``python -m benchmarks --help``."""

import argparse
import shlex
import sys
from pathlib import Path

from . import store
from .cases import LAYOUTS, OPERATIONS, OPTIONAL_PEERS, PEERS, PRECISIONS, load_cases, select

COMMANDS = {
    "run": "measure (the default command)",
    "report": "print and write the report of what was measured",
    "ceilings": "measure the copy and matmul rates of this GPU",
    "merge": "take the results of other folders over",
    "floors": "compute every floor again from the ceilings of the newest run (after a ceiling was corrected)",
    "cases": "list the cases",
}

EXAMPLES = """
examples:
  python -m benchmarks                                     every layer, forward, 4 precisions, 2 layouts
  python -m benchmarks --quick --precision fp16            a first look
  python -m benchmarks --only 'kb*' --only dcgan.g2        some layers
  python -m benchmarks --budget 540; python -m benchmarks --budget 540 --resume    the same in two halves
  python -m benchmarks report                              tables and plots of benchmarks/results

Results go to benchmarks/results/<gpu>.csv, one row an implementation, and <gpu>.json beside it. A part can be measured
again at any time: its rows replace the older ones. Ctrl-C loses no finished row.
"""


def choices(allowed):
    """A comma-separated list of some of `allowed`, or "all"."""

    def parse(text):
        names = tuple(allowed) if text == "all" else tuple(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
        return names

    return parse


def shard(text):
    try:
        index, count = map(int, text.split("/"))
    except ValueError:
        index, count = 0, 0
    if not 1 <= index <= count:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form i/n with 1 <= i <= n")
    return index, count


def parser():
    top = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures convt against every other way to compute a ConvTranspose2d layer, and against the limit "
        "of the machine.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", metavar="command")
    sub = {name: commands.add_parser(name, help=text, description=text) for name, text in COMMANDS.items()}
    for name in ("run", "cases"):
        add = sub[name].add_argument
        add("--only", action="append", default=[], metavar="CASE", help="a case or a shell pattern; may be repeated")
        add("--quick", action="store_true", help="the KernelBench layers and every 16th of the others")
        add("--shard", type=shard, default=(1, 1), metavar="I/N", help="every N-th case from the I-th")
    for name in ("run", "report", "merge", "floors"):
        sub[name].add_argument(
            "--output", type=Path, default=store.RESULTS, metavar="DIR", help="results folder (benchmarks/results)"
        )
    add = sub["run"].add_argument
    add("--op", choices=OPERATIONS, default="forward", help="which operator (forward)")
    add("--precision", type=choices(PRECISIONS), default=PRECISIONS, metavar="P,...", help=", ".join(PRECISIONS))
    add("--layout", type=choices(LAYOUTS), default=LAYOUTS, metavar="L,...", help=", ".join(LAYOUTS))
    add("--peers", type=choices((*PEERS, *OPTIONAL_PEERS)), default=PEERS, metavar="P,...",
        help=f"by default {', '.join(PEERS)}; also {', '.join(OPTIONAL_PEERS)}, or all")  # fmt: skip
    add("--resume", action="store_true", help="skip what was already measured with this source")
    add("--budget", type=float, default=float("inf"), metavar="SECONDS", help="stop cleanly before this time is over")
    add("--row-ms", type=float, default=15, metavar="MS", help="GPU time to spend on a row's samples (15)")
    for name in ("report", "floors"):
        sub[name].add_argument("--gpu", help="which <gpu>.csv; by default every one in the folder")
    sub["merge"].add_argument("folders", nargs="+", type=Path, help="folders that hold a <gpu>.csv")
    options = sub["run"].format_help().partition("options:")[2]
    top.epilog = f"options of run, the default command:{options}{EXAMPLES}"
    return top


def need_gpu(top):
    import torch

    import convt

    if not torch.cuda.is_available():
        top.error("measuring needs a CUDA GPU, and torch sees none here; `report` and `cases` work without")
    if convt.build_info()["cuda"] is None:
        top.error(f"convt was built without CUDA ({convt.build_info()['cuda_note']}); build it again")


def command_run(top, arguments, argv):
    from . import runner, timing

    try:
        cases = select(load_cases(), arguments.only, arguments.quick, arguments.shard)
    except ValueError as error:
        top.error(str(error))
    need_gpu(top)
    import convt

    digest = convt.build_info()["source_digest"]
    if digest != store.tree_digest():
        print("note: csrc/ has changed since convt was built; the figures are of the build", file=sys.stderr)
    options = runner.Options(
        arguments.op, arguments.precision, arguments.layout, arguments.peers, arguments.resume, arguments.budget
    )
    machine = timing.describe_machine()
    results = store.Store(arguments.output, store.slug(machine["gpu"]))
    try:
        with timing.Stopwatch(arguments.row_ms * 1e3) as stopwatch:
            ceilings = stopwatch.ceilings()
            print(machine["gpu"], show_ceilings(ceilings))
            record = runner.new_run(machine, ceilings, digest, recorded_command(argv))
            measured, left = runner.run(stopwatch, results, cases, options, record)
    except KeyboardInterrupt:
        print(f"stopped; the rows measured so far are in {results.csv_path.name}; --resume goes on", file=sys.stderr)
        return 130
    except RuntimeError as error:
        print(f"{error}\nThe rows measured so far are in {results.csv_path.name}; --resume goes on", file=sys.stderr)
        return 1
    print(f"measured {measured} cells" + (f"; {left} are left for --resume" if left else ""))
    return 0


def show_ceilings(ceilings):
    rates = ", ".join(f"{name} {ceilings[name]:.4g}" for name in PRECISIONS)
    return f"copy {ceilings['copy']:.3g} TB/s; matmul {rates} TFLOP/s; an empty call {ceilings['empty_call_us']:.2g} us"


def recorded_command(argv):
    """The command without folders, which mean nothing elsewhere."""
    kept = [a for a, before in zip(argv, ["", *argv], strict=False) if "--output" not in (a.split("=")[0], before)]
    return shlex.join(["python", "-m", "benchmarks", *kept])


def command_ceilings(top, arguments, argv):
    need_gpu(top)
    from . import timing

    with timing.Stopwatch() as stopwatch:
        print(timing.describe_machine()["gpu"], show_ceilings(stopwatch.ceilings()))
    return 0


def stores(top, arguments):
    names = [arguments.gpu] if arguments.gpu else sorted(p.stem for p in arguments.output.glob("*.csv"))
    results = [r for r in (store.Store(arguments.output, name) for name in names) if r.rows]
    if not results:
        top.error(f"there are no results in {arguments.output}; `python -m benchmarks` makes some")
    return results


def command_report(top, arguments, argv):
    from . import report

    for result in stores(top, arguments):
        print(report.write(result))
    return 0


def command_floors(top, arguments, argv):
    from . import roofline

    cases = {case.case: case for case in load_cases()}

    def floor_of(row, ceilings):
        return roofline.floor_us(cases[row["case"]], row["precision"], ceilings, row["op"])

    for result in stores(top, arguments):
        result.refloor(floor_of)
        result.compact(order=list(cases))
        print(f"{result.csv_path.stem}: {show_ceilings(result.runs[-1]['ceilings'])}")
    return 0


def command_merge(top, arguments, argv):
    sources = [(folder, path.stem) for folder in arguments.folders for path in sorted(folder.glob("*.csv"))]
    if not sources:
        top.error("none of these folders holds a <gpu>.csv")
    for folder, name in sources:
        results = store.Store(arguments.output, name)
        results.merge(store.Store(folder, name))
        results.compact(order=[case.case for case in load_cases()])
        print(f"{name}: {len(results.rows)} rows")
    return 0


def command_cases(top, arguments, argv):
    try:
        cases = select(load_cases(), arguments.only, arguments.quick, arguments.shard)
    except ValueError as error:
        top.error(str(error))
    for c in cases:
        print(f"{c.case:40} {c.kind:14} x {c.x_shape} w {c.w_shape} s {c.stride} p {c.padding} q {c.output_padding} "
              f"d {c.dilation} g {c.groups} {'bias' if c.bias else ''}")  # fmt: skip
    return 0


def main(argv=None):
    argv = list(sys.argv[1:] if argv is None else argv)
    top = parser()
    first = argv[0] if argv else ""
    arguments = top.parse_args(argv if first in (*COMMANDS, "-h", "--help") else ["run", *argv])
    return globals()[f"command_{arguments.command}"](top, arguments, argv)


if __name__ == "__main__":
    sys.exit(main())
