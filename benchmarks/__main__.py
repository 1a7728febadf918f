"""The command line; ``python -m benchmarks --help``."""

import argparse
import shlex
import sys
from math import inf
from pathlib import Path

from . import store
from .cases import DATA, LAYOUTS, OPERATIONS, OPTIONAL_PEERS, PEERS, PRECISIONS, load_cases, select

COMMANDS = {
    "run": "measure (the default command)",
    "sweep": "time every configuration that takes a layer, each forced",
    "sweep-report": "print what a sweep says of the planner's choices",
    "calibrate": "write the planner's calibration from sweeps",
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
  python -m benchmarks sweep --families direct,depthwise   every configuration of two families, and torch

Results go to benchmarks/results/<gpu>.csv, one row an implementation, and <gpu>.json beside it. A part can be measured
again at any time: its rows replace the older ones. Ctrl-C loses no finished row. A sweep goes to <gpu>-sweep.csv and
<gpu>-sweep.json. It ends with status 1 if a configuration was wrong or failed, and with 3 if one took the CUDA context
with it or never returned: --resume then goes on without that configuration.
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


def families(text):
    """Comma-separated beginnings of configuration names."""
    from convt import _C

    names = _C.configuration_names()
    beginnings = tuple(dict.fromkeys(text.split(",")))
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in names):
            raise argparse.ArgumentTypeError(f"no configuration begins with {beginning!r}: {', '.join(names)}")
    return beginnings


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
    for name in ("run", "sweep", "cases"):
        add = sub[name].add_argument
        only = ("--cases", "--only") if name == "sweep" else ("--only",)
        text = "a case or a shell pattern; may be repeated"
        add(*only, dest="only", action="append", default=[], metavar="CASE", help=text)
        add("--data", type=Path, default=DATA / "cases.csv", metavar="FILE",
            help="a table of layers (data/cases.csv); with another, give --output a folder of its own")  # fmt: skip
        add("--quick", action="store_true", help="the KernelBench layers and every 16th of the others")
        add("--shard", type=shard, default=(1, 1), metavar="I/N", help="every N-th case from the I-th")
    for name in ("run", "sweep", "report", "merge", "floors"):
        sub[name].add_argument(
            "--output", type=Path, default=store.RESULTS, metavar="DIR", help="results folder (benchmarks/results)"
        )
    for name, row_ms in (("run", 15), ("sweep", 5)):  # a sweep has many more rows
        add = sub[name].add_argument
        add("--op", choices=OPERATIONS, default="forward", help="which operator (forward)")
        add("--precision", type=choices(PRECISIONS), default=PRECISIONS, metavar="P,...", help=", ".join(PRECISIONS))
        add("--layout", type=choices(LAYOUTS), default=LAYOUTS, metavar="L,...", help=", ".join(LAYOUTS))
        if name == "run":
            add("--peers", type=choices((*PEERS, *OPTIONAL_PEERS)), default=PEERS, metavar="P,...",
                help=f"by default {', '.join(PEERS)}; also {', '.join(OPTIONAL_PEERS)}, or all")  # fmt: skip
        else:
            add("--families", type=families, default=(), metavar="F,...",
                help="only configurations whose names begin so, for example depthwise,direct/thread")  # fmt: skip
            add("--near", type=float, default=inf, metavar="TIMES",
                help="only what the planner may choose and expects to take at most so many times what it chooses, "
                "without torch (all, with torch)")  # fmt: skip
        add("--resume", action="store_true", help="skip what was already measured with this source")
        add("--budget", type=float, default=inf, metavar="SECONDS", help="stop cleanly before this time is over")
        text = f"GPU time to spend on a row's samples ({row_ms})"
        add("--row-ms", type=float, default=row_ms, metavar="MS", help=text)
    for name in ("report", "floors"):
        sub[name].add_argument("--gpu", help="which <gpu>.csv; by default every one in the folder")
    sub["calibrate"].add_argument("csv", type=Path, nargs="+", metavar="CSV", help="a <gpu>-sweep.csv")
    sub["calibrate"].add_argument("--output", type=Path, required=True, metavar="FILE",
                                  help="for example csrc/plan/calibration.inc")  # fmt: skip
    text = "take only what is at most so many times the fastest of its cell, for example 1.3 (all)"
    sub["calibrate"].add_argument("--near", type=float, default=inf, metavar="TIMES", help=text)
    text = "change the scales that FILE has, so that what is chosen is the fastest, or nearly"
    sub["calibrate"].add_argument("--refine", action="store_true", help=text)
    sub["calibrate"].add_argument("--families", type=families, default=(), metavar="F,...",
                                  help="change only configurations whose names begin so")  # fmt: skip
    for option, allowed, metavar in (("--precision", PRECISIONS, "P,..."), ("--layout", LAYOUTS, "L,...")):
        text = f"change only scales of these: {', '.join(allowed)}"
        sub["calibrate"].add_argument(option, type=choices(allowed), default=allowed, metavar=metavar, help=text)
    sub["sweep-report"].add_argument("csv", type=Path, metavar="CSV", help="a <gpu>-sweep.csv")
    sub["merge"].add_argument("folders", nargs="+", type=Path, help="folders that hold a <gpu>.csv or <gpu>-sweep.csv")
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


def selected(top, arguments):
    try:
        return select(load_cases(arguments.data), arguments.only, arguments.quick, arguments.shard)
    except (OSError, ValueError) as error:
        top.error(str(error))


def command_run(top, arguments, argv):
    def options(results, digest):
        from . import runner

        return runner.Options(
            arguments.op, arguments.precision, arguments.layout, arguments.peers, arguments.resume, arguments.budget
        )

    return measure(top, arguments, argv, selected(top, arguments), store.Store, options)[0]


def command_sweep(top, arguments, argv):
    from . import sweep

    def options(results, digest):
        return sweep.SweepOptions(
            arguments.op, arguments.precision, arguments.layout, (), arguments.resume, arguments.budget,
            families=arguments.families, near=arguments.near, lost=results.lost(digest) if arguments.resume else {},
            hung_seconds=60 + arguments.row_ms / 10,
        )  # fmt: skip

    cases = sweep.evenly(selected(top, arguments))
    status, results, digest = measure(top, arguments, argv, cases, sweep.SweepStore, options)
    troubles = results.troubles(digest)
    if troubles:
        print(f"{len(troubles)} rows of this source in {results.csv_path.name} failed or are wrong, among them:")
    for row in troubles[:20]:
        told = row["note"] or f"relative L2 {row['rel_l2']}, to torch's {row['rel_l2_torch'] or 'unknown'}"
        print(f"  {row['configuration']} {row['case']} {row['precision']} {row['layout']}: {told}")
    return status or int(bool(troubles))


def measure(top, arguments, argv, cases, kind, make_options):
    """Measures what a command asks for; the exit status, the store and the digest of the source.

    Args:
        kind: the class of the store.
        make_options: of the store and the digest.
    """
    need_gpu(top)
    import convt

    from . import runner, timing

    digest = convt.build_info()["source_digest"]
    if digest != store.tree_digest():
        print("note: csrc/ has changed since convt was built; the figures are of the build", file=sys.stderr)
    machine = timing.describe_machine()
    results = kind(arguments.output, store.slug(machine["gpu"]))
    options = make_options(results, digest)
    try:
        with timing.Stopwatch(arguments.row_ms * 1e3) as stopwatch:
            ceilings = stopwatch.ceilings()
            print(machine["gpu"], show_ceilings(ceilings))
            record = runner.new_run(machine, ceilings, digest, recorded_command(argv))
            measured, left = runner.run(stopwatch, results, cases, options, record)
    except KeyboardInterrupt:
        print(f"stopped; the rows measured so far are in {results.csv_path.name}; --resume goes on", file=sys.stderr)
        return 130, results, digest
    except RuntimeError as error:
        print(f"{error}\nThe rows measured so far are in {results.csv_path.name}; --resume goes on", file=sys.stderr)
        return runner.LOST if isinstance(error, runner.ContextLost) else 1, results, digest
    print(f"measured {measured} cells" + (f"; {left} are left for --resume" if left else ""))
    return 0, results, digest


def show_ceilings(ceilings):
    rates = ", ".join(f"{name} {ceilings[name]:.4g}" for name in PRECISIONS)
    return f"copy {ceilings['copy']:.3g} TB/s; matmul {rates} TFLOP/s; an empty call {ceilings['empty_call_us']:.2g} us"


def recorded_command(argv):
    """The command without folders, which mean nothing elsewhere."""

    def names_a_folder(argument):
        name = argument.split("=")[0]
        return name.startswith("--ou") and "--output".startswith(name)  # argparse takes what is short of it too

    kept = [
        a
        for a, before in zip(argv, ["", *argv], strict=False)
        if not names_a_folder(a) and ("=" in before or not names_a_folder(before))
    ]
    return shlex.join(["python", "-m", "benchmarks", *kept])


def command_ceilings(top, arguments, argv):
    need_gpu(top)
    from . import timing

    with timing.Stopwatch() as stopwatch:
        print(timing.describe_machine()["gpu"], show_ceilings(stopwatch.ceilings()))
    return 0


def stores(top, arguments):
    names = [arguments.gpu] if arguments.gpu else store.gpus(arguments.output)
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
    from . import sweep

    sources = [(folder, path.stem) for folder in arguments.folders for path in sorted(folder.glob("*.csv"))]
    if not sources:
        top.error("none of these folders holds a <gpu>.csv")
    for folder, name in sources:
        kind = sweep.SweepStore if name.endswith(store.SWEEP) else store.Store
        results = kind(arguments.output, name)
        results.merge(kind(folder, name))
        results.compact(order=[case.case for case in load_cases()])
        print(f"{name}: {len(results.rows)} rows")
    return 0


def command_sweep_report(top, arguments, argv):
    from . import sweep, sweep_report

    results = sweep.SweepStore(arguments.csv.parent, arguments.csv.stem)
    if not results.rows or arguments.csv.name != results.csv_path.name:
        top.error(f"{arguments.csv} holds no sweep; `python -m benchmarks sweep` makes a <gpu>-sweep.csv")
    print(sweep_report.text(results))
    return 0


def command_calibrate(top, arguments, argv):
    from . import calibrate, sweep

    rows = {}
    for path in arguments.csv:
        results = sweep.SweepStore(path.parent, path.stem)
        if not results.rows or path.name != results.csv_path.name:
            top.error(f"{path} holds no sweep; `python -m benchmarks sweep` makes a <gpu>-sweep.csv")
        rows |= results.rows
    everything = set(arguments.precision) == set(PRECISIONS) and set(arguments.layout) == set(LAYOUTS)
    before = []
    if arguments.refine or arguments.families or not everything:
        if not arguments.output.exists():
            top.error(f"{arguments.output} does not exist; it is written anew if all of it is fitted")
        before = calibrate.read(arguments.output.read_text())
    if arguments.refine:
        table = calibrate.refined(rows.values(), before, arguments.families)
    elif arguments.families:
        table = calibrate.renewed(rows.values(), before, arguments.families, arguments.near)
    else:
        table = calibrate.table(rows.values(), arguments.near)
    table = calibrate.restricted(before, table, arguments.precision, arguments.layout)
    arguments.output.write_text(calibrate.text(table))
    return 0


def command_cases(top, arguments, argv):
    for c in selected(top, arguments):
        print(f"{c.case:40} {c.kind:14} x {c.x_shape} w {c.w_shape} s {c.stride} p {c.padding} q {c.output_padding} "
              f"d {c.dilation} g {c.groups} {'bias' if c.bias else ''}")  # fmt: skip
    return 0


def main(argv=None):
    argv = list(sys.argv[1:] if argv is None else argv)
    top = parser()
    first = argv[0] if argv else ""
    arguments = top.parse_args(argv if first in (*COMMANDS, "-h", "--help") else ["run", *argv])
    return globals()[f"command_{arguments.command.replace('-', '_')}"](top, arguments, argv)


if __name__ == "__main__":
    sys.exit(main())
