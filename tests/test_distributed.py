"""DistributedDataParallel and FSDP2 over two processes: the gradients of one step are those of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from distributed_step import gradients, make_batch, make_model
from torch.testing import assert_close

import convt

SCRIPT = Path(__file__).with_name("distributed_step.py")
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 CUDA GPUs")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize(
    ("kind", "device"),
    [
        ("ddp", "cpu"),
        ("fsdp", "cpu"),
        pytest.param("ddp", "cuda", marks=[pytest.mark.gpu, needs_two_gpus]),
        pytest.param("fsdp", "cuda", marks=[pytest.mark.gpu, needs_two_gpus]),
    ],
)
def test_gradients_of_two_processes_are_those_of_one(kind, device, tmp_path):
    result = tmp_path / "gradients.pt"
    path = os.pathsep.join([str(Path(convt.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        # Standalone: a free port of this host.
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            SCRIPT,
            kind,
            device,
            result,
        ],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    torch.backends.cudnn.allow_tf32 = False
    alone = gradients(make_model(device), make_batch(device))
    assert_close(torch.load(result), alone, rtol=1e-5, atol=1e-6)
    assert all(g.any() for g in alone.values())
