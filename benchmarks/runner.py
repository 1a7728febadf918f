"""Measures cases, cell by cell: a cell is one (case, operation, precision, layout) with all its implementations."""

import time
import zlib
from dataclasses import dataclass, field
from datetime import datetime, timezone

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import convt

from . import peers, roofline
from .cases import LAYOUTS, PEERS, PRECISIONS, SHAPE_COLUMNS, load_cases
from .reference import make_reference
from .timing import DTYPE, precision_mode

LOST = 3  # exit status after a ContextLost


class ContextLost(RuntimeError):
    """The CUDA context is of no use any more: only another process can go on."""


@dataclass
class Options:
    """What to measure. The methods say what a cell is; a sweep of configurations has others."""

    operation: str = "forward"
    precisions: tuple = PRECISIONS
    layouts: tuple = LAYOUTS
    peers: tuple = PEERS
    resume: bool = False
    budget: float = float("inf")  # seconds
    started: float = field(default_factory=time.monotonic)

    def measure(self, stopwatch, store, case, precision, layout, operands, reference, ceilings):
        """The rows of a cell, and the error that lost the CUDA context or None."""
        return measure_cell(stopwatch, case, self, precision, layout, operands, reference, ceilings)

    def rows_without_figures(self, case, precision, layout, why):
        return [empty_row(case, self, precision, layout, impl, why) for impl in ("convt", *self.peers)]

    def is_done(self, store, case, precision, layout, digest):
        return is_done(store, case, self, precision, layout, digest)

    def summary(self, rows):
        return summary(rows)


def make_operands(case, dtype, device, operation):
    """Random (x, w, bias, dy) with outputs near 1, the same at every run."""
    generator = torch.Generator(device).manual_seed(zlib.crc32(case.case.encode()))

    def draw(shape, scale=1.0):
        return (torch.randn(shape, generator=generator, device=device) * scale).to(dtype)

    taps = roofline.useful_flops(case) / (2 * case.n * case.cout * max(case.out_size[0] * case.out_size[1], 1))
    x, w = draw(case.x_shape), draw(case.w_shape, max(taps, 1) ** -0.5)
    bias = draw((case.cout,)) if case.bias and operation == "forward" else None
    return x, w, bias, draw(case.y_shape) if operation != "forward" else None


def in_layout(tensor, layout):
    if tensor is None or tensor.dim() != 4:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last if layout == "nhwc" else torch.contiguous_format)


def explain(case, operation, x, w, bias, dy):
    a, b = {"forward": (x, w), "input_grad": (dy, w), "weight_grad": (x, dy)}[operation]
    return convt.explain(
        a, b, bias, case.stride, case.padding, case.output_padding, case.groups, case.dilation,
        operation=operation, input_size=(case.h, case.w), kernel_size=case.kernel,
    )  # fmt: skip


def plan_name(case, operation, x, w, bias, dy):
    plan = explain(case, operation, x, w, bias, dy)
    return f"{plan.algorithm}/{plan.configuration}"


def reason(error):
    if isinstance(error, torch.OutOfMemoryError):
        return "no figure: does not fit in memory"
    return f"no figure: {(str(error).strip() or repr(error)).splitlines()[0][:160]}"


def empty_row(case, options, precision, layout, impl, plan=""):
    row = {name: getattr(case, name) for name in SHAPE_COLUMNS}
    return row | {"op": options.operation, "precision": precision, "layout": layout, "impl": impl, "plan": plan}


def measure_cell(stopwatch, case, options, precision, layout, operands, reference, ceilings):
    """The rows of one cell, and the error that lost the CUDA context or None.

    An implementation that failed is a row with its reason.
    """
    x, w, bias, dy = (in_layout(t, layout) for t in operands)
    rows, probes, lost = {}, {}, None
    floor, floor_by = roofline.floor_us(case, precision, ceilings, options.operation)
    for impl in ("convt", *options.peers):
        row = rows[impl] = empty_row(case, options, precision, layout, impl, reason(lost) if lost else "")
        if lost:
            continue
        try:
            if impl == "convt":
                row["plan"] = plan_name(case, options.operation, x, w, bias, dy)
            call = peers.build(impl, options.operation, case, layout, x, w, bias, dy)
            probe = stopwatch.probe(call)
            row["rel_l2"] = f"{reference.relative_l2(probe.output):.3e}"
            probe.output = None
            probes[impl] = probe
        except peers.NotApplicable:
            del rows[impl]
        except (RuntimeError, ValueError) as error:
            row["plan"] = reason(error)
            lost = try_to_recover(stopwatch)
    failure = lost
    if not lost:
        try:
            stopwatch.sample(list(probes.values()))
        except RuntimeError as error:
            failure, lost = error, try_to_recover(stopwatch)
    for impl, probe in probes.items():
        if failure:
            rows[impl] |= {"plan": reason(failure), "rel_l2": None}
            continue
        median, p10, p90 = probe.quantiles()
        host = sorted(probe.host_us)[len(probe.host_us) // 2]
        rows[impl] |= {"us_median": f"{median:.5g}", "us_p10": f"{p10:.5g}", "us_p90": f"{p90:.5g}"}
        rows[impl] |= {"host_us": f"{host:.4g}", "floor_us": f"{floor:.5g}", "floor_by": floor_by}
        rows[impl]["extra_bytes"] = probe.extra_bytes
    return list(rows.values()), lost


def try_to_recover(stopwatch):
    """None, or the error that says that the CUDA context is lost."""
    try:
        stopwatch.recover()
    except RuntimeError as error:
        return error
    return None


def cells(options, precisions):
    return [(precision, layout) for precision in precisions for layout in options.layouts]


def is_done(store, case, options, precision, layout, digest):
    """Whether this source was measured in the cell, beside every peer asked for that takes any layer."""
    needed = ["convt", *(impl for impl in options.peers if impl in peers.universal(options.operation))]
    keys = [(case.case, options.operation, precision, layout, impl) for impl in needed]
    return all(store.digest_of(k) == digest for k in keys)


def measure_case(stopwatch, store, case, options, todo, ceilings, device):
    """Measures the cells `todo` of a case, a list of (precision, layout), and stores each as it is done.

    Yields (precision, layout, rows) after each. Raises ContextLost.
    """
    for dtype in dict.fromkeys(DTYPE[precision] for precision, _ in todo):
        mine = [cell for cell in todo if DTYPE[cell[0]] == dtype]
        operands = reference = unfit = None
        try:
            stopwatch.tidy()
            operands = make_operands(case, dtype, device, options.operation)
            reference = make_reference(case, options.operation, *operands)
        except torch.OutOfMemoryError as error:
            unfit = reason(error)
            stopwatch.recover()
        for precision, layout in mine:
            failure, lost = unfit, None
            try:
                if not failure:
                    with precision_mode(precision):
                        rows, lost = options.measure(
                            stopwatch, store, case, precision, layout, operands, reference, ceilings
                        )
            except torch.OutOfMemoryError as error:  # the operands in another layout
                failure = reason(error)
                stopwatch.recover()
            if failure:
                rows = options.rows_without_figures(case, precision, layout, failure)
            store.append(rows)
            yield precision, layout, rows
            if lost:
                raise ContextLost(f"the CUDA context is lost: {lost}")


def summary(rows):
    """One line: the fastest peer against convt, as far as there are figures."""
    times = {row["impl"]: float(row["us_median"]) for row in rows if row.get("us_median")}
    ours = times.pop("convt", None)
    if ours is None:
        return next((row["plan"] for row in rows if row["impl"] == "convt"), "")
    best = min(times, key=times.get, default=None)
    return f"convt {ours:.4g} us" + (f", {best} {times[best]:.4g} us ({times[best] / ours:.2f}x)" if best else "")


def run(stopwatch, store, cases, options, run_record, device="cuda", console=None):
    """Measures all cases that are to be done.

    Args:
        run_record: what `Store.runs` keeps of this run; with "digest" and "ceilings".

    Returns:
        (cells measured, cells left because the budget ran out).
    """
    console = console or Console()
    digest, ceilings = run_record["digest"], run_record["ceilings"]
    jobs = []
    for case in cases:
        todo = cells(options, options.precisions)
        if options.resume:
            todo = [cell for cell in todo if not options.is_done(store, case, *cell, digest)]
        if todo:
            jobs.append((case, todo))
    total = sum(len(todo) for _, todo in jobs)
    store.start_run(run_record)
    measured, longest, last_line = 0, 0.0, 0.0
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cells"),
               TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]  # fmt: skip
    try:
        with torch.no_grad(), Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=total)
            for case, todo in jobs:
                progress.update(task, description=case.case)
                begin = time.monotonic()
                for precision, layout, rows in measure_case(stopwatch, store, case, options, todo, ceilings, device):
                    now = time.monotonic()
                    longest, begin = max(longest, now - begin), now
                    measured += 1
                    progress.advance(task)
                    # A terminal shows the bar; a log gets a line now and then.
                    if not console.is_terminal and now - last_line > 10:
                        last_line = now
                        done = f"{measured}/{total} {now - options.started:.0f} s"
                        cell = f"{case.case} {precision} {layout}"
                        console.print(f"{done} {cell}: {options.summary(rows)}", soft_wrap=True)
                    if now - options.started + longest > options.budget:
                        return measured, total - measured
    finally:
        store.compact(order=[case.case for case in load_cases()])
    return measured, 0


def new_run(machine, ceilings, digest, command):
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return machine | {"date": date, "digest": digest, "ceilings": ceilings, "command": command}
