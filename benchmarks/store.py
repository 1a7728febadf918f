"""Results on disk: ``<gpu>.csv``, one row an implementation, and ``<gpu>.json``, the runs that the rows come from.

A run appends its rows as it finishes them, so that nothing is lost if it is killed; of rows with the same key the last
one counts, and `Store.compact` drops the others.
"""

import csv
import hashlib
import json
import os
import re
from pathlib import Path

from .cases import SHAPE_COLUMNS

KEY = ("case", "op", "precision", "layout", "impl")
MEASURED = ("us_median", "us_p10", "us_p90", "host_us", "floor_us", "floor_by", "rel_l2", "extra_bytes")
COLUMNS = (*SHAPE_COLUMNS, "op", "precision", "layout", "impl", "plan", *MEASURED)
RESULTS = Path(__file__).parent / "results"
SWEEP = "-sweep"  # ends the names of the stores of sweep.py


def slug(gpu):
    """The file name of a GPU: "NVIDIA H200" is h200."""
    words = re.findall(r"[a-z0-9]+", gpu.lower())
    return "-".join(word for word in words if word not in ("nvidia", "geforce", "tesla")) or "gpu"


def tree_digest(root=None):
    """SHA-256 over the paths and contents of csrc/, as build_info() has it; None without csrc/."""
    root = Path(root or Path(__file__).parent.parent)
    paths = sorted(p.relative_to(root).as_posix() for p in (root / "csrc").rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path}\0{hashlib.sha256((root / path).read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest() if paths else None


def gpus(folder):
    """The names of the stores in a folder that are measurements of a GPU, not sweeps."""
    return [path.stem for path in sorted(Path(folder).glob("*.csv")) if not path.stem.endswith(SWEEP)]


class Store:
    """The results of one GPU.

    Attributes:
        rows: {(case, op, precision, layout, impl): row}, a row being a dict of strings by column.
        runs: dicts with GPU, driver, versions, date, ceilings, digest and command.
        run_of: {key of a row: index into runs}.
    """

    key_columns = KEY  # case, operation, precision and layout, then what was measured in that cell
    columns = COLUMNS

    def __init__(self, folder, name):
        self.folder = Path(folder)
        self.name = name
        self.csv_path = self.folder / f"{name}.csv"
        self.json_path = self.folder / f"{name}.json"
        self.rows, self.runs, self.run_of = {}, [], {}
        if self.csv_path.exists():
            with open(self.csv_path, newline="") as file:
                # A line that was cut off when the machine went down has no last column.
                for row in csv.DictReader(file):
                    if None not in row.values():
                        # A file of before a column was added has it empty.
                        self.rows[self.key(row)] = dict.fromkeys(self.columns, "") | row
        if self.json_path.exists():
            self._read_record()

    def key(self, row):
        return tuple(row[name] for name in self.key_columns)

    def _read_record(self):
        record = json.loads(self.json_path.read_text())
        self.runs = record["runs"]
        for k in self.rows:
            run = record["rows"].get(k[0], {}).get("/".join(k[1:4]))
            run = run.get(k[4]) if isinstance(run, dict) else run
            if run is not None:
                self.run_of[k] = run

    def digest_of(self, row_key):
        """The source digest that a row was measured on, or None if that is not known."""
        run = self.run_of.get(row_key)
        return None if run is None else self.runs[run]["digest"]

    def start_run(self, run):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.runs.append(run)
        # Also drops half a line that a crash may have left, before rows are appended behind it.
        self.compact(keep_last_run=True)

    def append(self, rows):
        """Adds finished rows of the current run; they are on the disk when this returns."""
        with open(self.csv_path, "a", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerows(rows)
            file.flush()
            os.fsync(file.fileno())
        for row in rows:
            text = {name: "" if row.get(name) is None else str(row[name]) for name in self.columns}
            self.rows[self.key(text)] = text
            self.run_of[self.key(text)] = len(self.runs) - 1
        self._write_record()

    def merge(self, other):
        """Takes the rows of another store of the same GPU over; they replace rows of the same key."""
        offset = len(self.runs)
        self.runs += other.runs
        for k, row in other.rows.items():
            self.rows[k] = row
            self.run_of.pop(k, None)
            if k in other.run_of:
                self.run_of[k] = other.run_of[k] + offset

    def refloor(self, floor_of):
        """Computes every floor again from the newest run's ceilings: floor_of(row, ceilings) -> (us, limit)."""
        newest = self.runs[-1]
        for run in self.runs[:-1]:
            run["ceilings"] = newest["ceilings"] | {"of_run": newest["date"]}
        for row in self.rows.values():
            if row["floor_us"]:  # a row without a figure has none
                floor, limit = floor_of(row, newest["ceilings"])
                row["floor_us"], row["floor_by"] = f"{floor:.5g}", limit

    def compact(self, order=(), keep_last_run=False):
        """Writes one row a key, cases in the given order, and forgets runs of which no row is left."""
        rank = {case: i for i, case in enumerate(order)}
        keys = sorted(self.rows, key=lambda k: rank.get(k[0], len(rank))) if order else list(self.rows)
        self.rows = {k: self.rows[k] for k in keys}
        used = set(self.run_of.values()) | ({len(self.runs) - 1} if keep_last_run else set())
        number = {old: new for new, old in enumerate(sorted(used))}
        self.runs = [self.runs[i] for i in sorted(used)]
        self.run_of = {k: number[run] for k, run in self.run_of.items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.csv_path.with_suffix(".csv.new")
        with open(temporary, "w", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows.values())
        temporary.replace(self.csv_path)
        self._write_record()

    def _write_record(self):
        cells = {}
        for k in self.rows:
            cells.setdefault(k[0], {}).setdefault("/".join(k[1:4]), {})[k[4]] = self.run_of.get(k)
        for by_cell in cells.values():
            for cell, runs in by_cell.items():
                if len(set(runs.values())) == 1:
                    by_cell[cell] = next(iter(runs.values()))
        lines = ",\n".join(f"  {json.dumps(case)}: {json.dumps(by_cell)}" for case, by_cell in cells.items())
        digest = json.dumps(self.runs[-1]["digest"] if self.runs else None)  # of the newest run
        text = (
            f'{{\n"source_digest": {digest},\n"runs": {json.dumps(self.runs, indent=1)},\n"rows": {{\n{lines}\n}}\n}}\n'
        )
        temporary = self.json_path.with_suffix(".json.new")
        temporary.write_text(text)
        temporary.replace(self.json_path)
