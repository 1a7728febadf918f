"""Measures calls on one GPU. The method and its reasons are in README.md."""

import contextlib
import math
import statistics
import subprocess
import time
import warnings
from dataclasses import dataclass, field
from functools import partial

import torch

# A longer call hides its launches behind its own work; a graph of it would only hold memory.
GRAPH_BELOW_US = 2000
# From here on a second sample is enough: the row must not take seconds.
SLOW_US = 50_000


@contextlib.contextmanager
def precision_mode(precision):
    """Sets what torch may do with float32: TF32 for "tf32", in convolutions and products alike, else not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recent torch prefers another spelling of the same switches
        before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


DTYPE = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class Probe:
    """What is known of one call; times in us."""

    call: object
    output: torch.Tensor | None = None
    estimate: float = 0.0
    extra_bytes: int = 0
    gpu_us: list = field(default_factory=list)
    host_us: list = field(default_factory=list)

    def quantiles(self):
        """Median, p10 and p90 of the GPU time."""
        points = torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)
        return torch.tensor(self.gpu_us, dtype=torch.float64).quantile(points).tolist()


class Stopwatch:
    """Times calls on the current CUDA device. Use it as a context: all work must be on its stream.

    Args:
        row_us: GPU time to spend on the samples of one call.
    """

    def __init__(self, row_us=15_000):
        self.row_us = row_us
        self.device = torch.device("cuda", torch.cuda.current_device())
        # Capture needs a stream that is not the default one, and library workspaces belong to a stream: warm-up,
        # capture and timing therefore share one.
        self.stream = torch.cuda.Stream()
        l2 = torch.cuda.get_device_properties(self.device).L2_cache_size
        self.flush_buffer = torch.empty(max(4 * l2, 2**27), dtype=torch.int8, device=self.device)

    def __enter__(self):
        self.context = torch.cuda.stream(self.stream)
        self.context.__enter__()
        return self

    def __exit__(self, *exception):
        self.context.__exit__(*exception)

    def flush(self):
        """Evicts the L2 cache; long enough on the GPU for the host to queue what comes behind it."""
        self.flush_buffer.zero_()

    def synchronize(self):
        torch.cuda.synchronize()

    def tidy(self):
        """Gives cached memory back before it keeps a graph from getting any."""
        if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(self.device).total_memory // 2:
            torch.cuda.empty_cache()

    def recover(self):
        """After a failed call: frees what it held. Raises if the CUDA context is lost."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def probe(self, call):
        """Warms up, then runs the call once more into poisoned memory; its output and first sample."""
        probe = Probe(call)
        output = call()
        output.fill_(float("nan"))
        self.synchronize()
        del output
        torch.cuda.reset_peak_memory_stats()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.flush()
        start.record()
        begin = time.perf_counter_ns()
        probe.output = call()
        probe.host_us.append((time.perf_counter_ns() - begin) * 1e-3)
        end.record()
        probe.extra_bytes = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        self.synchronize()
        probe.estimate = start.elapsed_time(end) * 1e3
        return probe

    def sample(self, probes, host=True):
        """Takes the samples of calls that were probed, interleaved, so that drift of the clocks meets all alike.

        Args:
            host: whether to take the host's time too.
        """
        pool = torch.cuda.graph_pool_handle()
        replays, plan, events = [], [], []
        for probe in probes:
            short = probe.estimate <= GRAPH_BELOW_US
            replays.append(self.captured(probe.call, pool) if short else probe.call)
            if probe.estimate > SLOW_US:
                probe.gpu_us.append(probe.estimate)
                plan.append(1)
            else:
                plan.append(min(50, max(3, math.ceil(self.row_us / max(probe.estimate, 1)))))
        rounds = max(plan, default=0)
        for turn in range(rounds):
            for probe, replay, count in zip(probes, replays, plan, strict=True):
                if (turn + 1) * count // rounds == turn * count // rounds:
                    continue
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                self.flush()
                start.record()
                replay()
                end.record()
                events.append((probe, start, end))
        self.synchronize()
        for probe, start, end in events:
            probe.gpu_us.append(start.elapsed_time(end) * 1e3)
        for probe in probes if host else ():
            self.time_host(probe)

    def time_host(self, probe):
        """Microseconds until an eager call returns; few enough calls that the launch queue never fills."""
        calls = min(20, int(10_000 / max(probe.estimate, 1)))
        self.synchronize()
        for _ in range(calls):
            begin = time.perf_counter_ns()
            probe.call()
            probe.host_us.append((time.perf_counter_ns() - begin) * 1e-3)
        self.synchronize()

    def captured(self, call, pool):
        """The call as a graph's replay; the call itself if it cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        try:
            self.synchronize()
            graph.capture_begin(pool=pool)
            try:
                call()
            finally:
                graph.capture_end()
        except RuntimeError:
            self.recover()
            return call
        graph.replay()
        return graph.replay

    def median_us(self, call):
        probe = self.probe(call)
        probe.output = None
        self.sample([probe])
        return statistics.median(probe.gpu_us)

    def ceilings(self):
        """Measured limits: copy rate in TB/s (bytes read plus written), matmul rates in TFLOP/s, overhead in us."""
        free, _ = torch.cuda.mem_get_info()
        source = torch.randn(min(2**28, free // 32), device=self.device)
        target = torch.empty_like(source)
        # By a kernel: a copy in a CUDA graph becomes a memcpy node, which reaches two thirds of a kernel's rate.
        copy = partial(torch.neg, source, out=target)
        result = {"copy": 2 * source.nbytes / self.median_us(copy) * 1e-6}
        del source, target
        size = 8192
        for precision, dtype in DTYPE.items():
            with precision_mode(precision):
                a, b = (torch.randn(size, size, device=self.device, dtype=dtype) for _ in range(2))
                result[precision] = 2 * size**3 / self.median_us(partial(torch.mm, a, b)) * 1e-6
                del a, b
        one = torch.ones(1, device=self.device)
        result["empty_call_us"] = self.median_us(lambda: one.add_(1))
        torch.cuda.empty_cache()
        return {name: float(f"{value:.4g}") for name, value in result.items()}


def describe_machine():
    """GPU, driver and library versions, for the record beside the results."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = None
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
    }
