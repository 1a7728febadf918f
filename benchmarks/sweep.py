"""Times every configuration of convt that takes a layer, each forced: what the planner could have chosen.

A cell is one (case, operation, precision, layout) as in runner.py; its rows are the configurations and torch. A new
configuration may fail in any way: with a wrong result, with an error that ends the CUDA context, or by never returning.
"""

import contextlib
import os
import sys
import threading
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from math import inf

import torch

from convt import _C

from . import peers, roofline
from .reference import LARGEST_ERROR
from .runner import LOST, Options, explain, in_layout, reason, try_to_recover
from .store import SWEEP, Store
from .timing import DTYPE, precision_mode

TORCH = "torch"
FAILED = "failed: "
# After these only another process can go on. It does without the configuration.
ENDED = "ended the CUDA context: "
HUNG = "did not return within"


class SweepStore(Store):
    """The rows of a sweep.

    `modelled_us` is what the family's model says, `estimated_us` the planner's estimate, `rel_l2` the error as in
    results.csv, `rel_l2_torch` the distance to torch's whole result, `reservation` why only a forced plan uses the
    configuration although it takes the layer, `note` why there is no figure.
    """

    key_columns = ("case", "op", "precision", "layout", "configuration")
    columns = (
        "case", "class", "op", "precision", "layout", "configuration", "modelled_us", "estimated_us", "us_median",
        "rel_l2", "rel_l2_torch", "floor_us", "tile", "grid", "reservation", "note",
    )  # fmt: skip

    def __init__(self, folder, gpu):
        super().__init__(folder, gpu.removesuffix(SWEEP) + SWEEP)

    def troubles(self, digest):
        """The rows of this source with an error or a result that is wrong."""
        mine = [row for k, row in self.rows.items() if self.digest_of(k) == digest and row["configuration"] != TORCH]
        return [row for row in mine if row["note"].startswith((FAILED, ENDED, HUNG)) or is_wrong(row)]

    def lost(self, digest):
        """{configuration: (case, precision, layout)} where it ended a process of this source."""
        return {
            row["configuration"]: (row["case"], row["precision"], row["layout"])
            for k, row in self.rows.items()
            if self.digest_of(k) == digest and row["note"].startswith((ENDED, HUNG))
        }


def is_wrong(row):
    """Whether a row with a figure has an error beyond its precision's; NaN is."""
    limit = LARGEST_ERROR[row["precision"]]
    if row["us_median"] and not float(row["rel_l2"]) <= limit:
        return True
    # Two results that are right are at most this far from each other.
    return bool(row["rel_l2_torch"]) and not float(row["rel_l2_torch"]) <= 2 * limit


def evenly(cases):
    """The cases, one of each class in turns: a sweep that is cut has seen as much of the one as of the other."""
    by_kind = {}
    for case in cases:
        by_kind.setdefault(case.kind, []).append(case)
    return [case for case in chain.from_iterable(zip_longest(*by_kind.values())) if case is not None]


def candidates(case, operation, precision, layout, families=(), near=inf):
    """{full name: candidate} of the configurations that take the layer, in the planner's order.

    Args:
        families: what their names begin with; empty for all.
        near: only those that the planner may choose, by estimates of at most so many times its choice's.
    """

    def empty(shape):
        return in_layout(torch.empty(shape, dtype=DTYPE[precision], device="meta"), layout)

    gradient = operation != "forward"
    bias = empty((case.cout,)) if case.bias and not gradient else None
    with precision_mode(precision):
        plan = explain(case, operation, empty(case.x_shape), empty(case.w_shape), bias, empty(case.y_shape))
    named = {f"{c.algorithm}/{c.configuration}": c for c in plan.candidates if c.fits}
    if near < inf:
        named = {name: c for name, c in named.items() if not c.reservation}
        least = min((c.estimated_seconds for c in named.values()), default=inf)
        named = {name: c for name, c in named.items() if c.estimated_seconds <= near * least}
    return {name: c for name, c in named.items() if name.startswith(families or "")}


def failure(error):
    why = reason(error).removeprefix("no figure: ")
    return why if isinstance(error, torch.OutOfMemoryError) else FAILED + why


def forced(configuration, call):
    def run():
        _C.force_configuration(configuration)
        try:
            return call()
        finally:
            _C.force_configuration("")

    return run


def distance(result, expected):
    """||result - expected|| / ||expected|| over all elements, a part at a time."""
    step = max(1, 2**26 * len(expected) // max(expected.numel(), 1))
    norm = torch.linalg.vector_norm
    parts = zip(result.split(step), expected.split(step), strict=True)
    pairs = [(norm(a - b, dtype=torch.float32), norm(b, dtype=torch.float32)) for a, b in parts]
    difference, length = (norm(torch.stack(values)) for values in zip(*pairs, strict=True))
    return (difference / length).item()


@dataclass
class SweepOptions(Options):
    families: tuple = ()
    near: float = inf
    # {configuration: (case, precision, layout)}: not tried again anywhere.
    lost: dict = field(default_factory=dict)
    # Many times what the slowest kernel takes for the largest layer.
    hung_seconds: float = 60

    def candidates(self, case, precision, layout):
        return candidates(case, self.operation, precision, layout, self.families, self.near)

    def contenders(self, case, precision, layout):
        """{name: candidate} of a cell's rows. What is near is compared with itself: without torch, which is slow."""
        return ({TORCH: None} if self.near == inf else {}) | self.candidates(case, precision, layout)

    def row(self, case, precision, layout, configuration, candidate=None, note=""):
        row = {"case": case.case, "class": case.kind, "op": self.operation, "precision": precision, "layout": layout}
        row |= {"configuration": configuration, "note": note}
        if candidate is not None:
            tile = candidate.plan.tile
            row["modelled_us"] = f"{candidate.modelled_seconds * 1e6:.5g}"
            row["estimated_us"] = f"{candidate.estimated_seconds * 1e6:.5g}"
            row["grid"] = candidate.plan.grid
            row["reservation"] = candidate.reservation
            row["tile"] = str(tile) if tile.rows else ""  # no tile in the families that have none
        return row

    def rows_without_figures(self, case, precision, layout, why):
        found = self.contenders(case, precision, layout)
        why = why.removeprefix("no figure: ")
        return [self.row(case, precision, layout, name, candidate, why) for name, candidate in found.items()]

    def is_done(self, store, case, precision, layout, digest):
        names = self.contenders(case, precision, layout)
        keys = [(case.case, self.operation, precision, layout, name) for name in names]
        return all(store.digest_of(k) == digest for k in keys)

    def summary(self, rows):
        times = {row["configuration"]: float(row["us_median"]) for row in rows if row.get("us_median")}
        torch_us = times.pop(TORCH, None)
        if not times:
            return "no figure"
        best = min(times, key=times.get)
        text = f"{best} {times[best]:.4g} us, the best of {len(times)}"
        return text + (f", torch {torch_us:.4g} us ({torch_us / times[best]:.2f}x)" if torch_us else "")

    @contextlib.contextmanager
    def watched(self, store, rows):
        """Ends the process if the block does not: a kernel that waits for ever cannot be stopped in any other way."""

        def end():
            note = f"{HUNG} {self.hung_seconds:g} s"
            if len(rows) > 1:  # it is not known which one it was, and none is given up
                note = f"{FAILED}it or another of its cell {note}"
            store.append([row | {"note": note} for row in rows])
            names = ", ".join(row["configuration"] for row in rows)
            print(f"\n{rows[0]['case']} {rows[0]['precision']} {rows[0]['layout']}: {names}: {note}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(LOST)

        timer = threading.Timer(self.hung_seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def measure(self, stopwatch, store, case, precision, layout, operands, reference, ceilings):
        x, w, bias, dy = (in_layout(t, layout) for t in operands)
        floor, _ = roofline.floor_us(case, precision, ceilings, self.operation)
        ours, theirs = (peers.build(impl, self.operation, case, layout, x, w, bias, dy) for impl in ("convt", "torch"))
        rows, probes, torch_result = {}, {}, None
        for name, candidate in self.contenders(case, precision, layout).items():
            row = self.row(case, precision, layout, name, candidate)
            if name in self.lost:
                where = self.lost[name]
                if where != (case.case, precision, layout):  # there, the row says what happened
                    rows[name] = row | {"note": f"not tried: it ended a process in {' '.join(where)}"}
                continue
            rows[name] = row
            try:
                with self.watched(store, [row]):
                    probe = stopwatch.probe(theirs if name == TORCH else forced(name, ours))
                error = reference.relative_l2(probe.output)
                row["rel_l2"] = f"{error:.3e}"
                if name == TORCH:
                    torch_result = probe.output if error <= LARGEST_ERROR[precision] else None
                elif torch_result is not None:
                    row["rel_l2_torch"] = f"{distance(probe.output, torch_result):.3e}"
                probe.output = None
                probes[name] = probe
            except RuntimeError as error:
                row["note"] = failure(error)
                lost = try_to_recover(stopwatch)
                if lost:
                    row["note"] = ENDED + row["note"].removeprefix(FAILED)
                    # What was probed has no time yet and is for the next process.
                    return [r for r in rows.values() if r["note"]], lost
        torch_result = None
        try:
            with self.watched(store, [rows[name] for name in probes]):
                stopwatch.sample(list(probes.values()), host=False)
        except RuntimeError as error:
            for name in probes:  # it is not known which one it was
                rows[name]["note"] = failure(error)
            return list(rows.values()), try_to_recover(stopwatch)
        for name, probe in probes.items():
            rows[name] |= {"us_median": f"{probe.quantiles()[0]:.5g}", "floor_us": f"{floor:.5g}"}
        return list(rows.values()), None
