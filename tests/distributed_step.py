"""One training step of a swapped model under DDP or FSDP2, run by torchrun from test_distributed.py.

python distributed_step.py ddp|fsdp cpu|cuda RESULT: rank 0 writes the whole model's gradients to RESULT.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import convt

BATCH = 4


def make_model(device):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.ConvTranspose2d(4, 8, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 8, 3, padding=1, groups=4),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 2, 3, stride=2, padding=1, output_padding=1, bias=False),
    )
    assert len(convt.replace_(model)) == 3
    return model.to(device)


def make_batch(device):
    return torch.randn(BATCH, 4, 5, 6, generator=torch.Generator().manual_seed(1)).to(device)


def gradients(model, x):
    """Of the mean over the batch."""
    model(x).pow(2).mean().backward()
    grads = {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}
    return {n: (g.full_tensor() if isinstance(g, DTensor) else g).cpu() for n, g in grads.items()}


def main(kind, device_type, result):
    torch.backends.cudnn.allow_tf32 = False
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if device_type == "cpu":
        device, backend = torch.device("cpu"), "gloo"
    else:
        device, backend = torch.device("cuda", rank), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    model = make_model(device)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = dist.device_mesh.init_device_mesh(device_type, (world,))
        for i in (0, 2, 4):
            fully_shard(model[i], mesh=mesh)
        fully_shard(model, mesh=mesh)
    grads = gradients(model, make_batch(device).chunk(world)[rank])
    if rank == 0:
        torch.save(grads, result)
    dist.barrier()
    dist.destroy_process_group()
    # DTensor's caches keep the group, and so Gloo's threads, alive. One of them that gives back the tensors of the last
    # collective while the interpreter is ending aborts the process ("terminate called without an active exception");
    # so a rank whose work is done leaves without ending the interpreter.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
