"""Host microseconds of an eager call: python -m benchmarks.host [FILE]

A layer whose GPU time is next to nothing (1x8x8x8, 2x2 s2), so that a loop of calls without synchronisation takes the
host's time. Functions and modules, with and without a graph for autograd; median over interleaved repeats.
"""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

import convt


def microseconds(call, calls=300):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * elapsed / calls


def main():
    torch.manual_seed(0)
    x = torch.randn(1, 8, 8, 8, device="cuda")
    theirs = torch.nn.ConvTranspose2d(8, 8, 2, stride=2, device="cuda")
    ours = convt.ConvTranspose2d(8, 8, 2, stride=2, device="cuda")
    figures = {}
    for grad in (False, True):
        for tensor in (x, *theirs.parameters(), *ours.parameters()):
            tensor.requires_grad_(grad)
        calls = {
            "F.conv_transpose2d": lambda: F.conv_transpose2d(x, theirs.weight, theirs.bias, 2),
            "convt.conv_transpose2d": lambda: convt.conv_transpose2d(x, ours.weight, ours.bias, 2),
            "nn.ConvTranspose2d": lambda: theirs(x),
            "convt.ConvTranspose2d": lambda: ours(x),
        }
        times = {name: [] for name in calls}
        for call in calls.values():
            microseconds(call)
        for _ in range(15):
            for name, call in calls.items():
                times[name].append(microseconds(call))
        for name, values in times.items():
            figures[f"{name}, {'with' if grad else 'no'} grad"] = round(statistics.median(values), 2)
    for name, value in figures.items():
        print(f"{name:40s} {value:7.2f} us")
    if len(sys.argv) > 1:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        digest = convt.build_info()["source_digest"]
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump({**about, "source_digest": digest, "host_us": figures}, file, indent=1)


if __name__ == "__main__":
    main()
