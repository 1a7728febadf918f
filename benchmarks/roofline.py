"""The least time that a layer can take: its bytes at the copy rate or its useful FLOPs at the matmul rate."""

from math import prod

from convt import _C

ELEMENT_SIZE = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


def useful_flops(case):
    """FLOPs of the taps that land inside the output, the same for the forward and both gradients (2 a product)."""
    pairs = [
        _C.useful_pairs(size, out, k, s, p, d)
        for size, out, k, s, p, d in zip(
            (case.h, case.w), case.out_size, case.kernel, case.stride, case.padding, case.dilation, strict=True
        )
    ]
    return 2 * case.n * case.cin * (case.cout // case.groups) * prod(pairs)


def compulsory_bytes(case, precision, operation="forward"):
    """Input, weight and output, each once; the bias too if the forward has one."""
    elements = prod(case.x_shape) + prod(case.w_shape) + prod(case.y_shape)
    if case.bias and operation == "forward":
        elements += case.cout
    return elements * ELEMENT_SIZE[precision]


def limits_us(case, precision, ceilings, operation="forward"):
    """(memory time, arithmetic time) in us. ceilings: copy in TB/s, and a rate in TFLOP/s for each precision."""
    memory = compulsory_bytes(case, precision, operation) / ceilings["copy"] * 1e-6
    return memory, useful_flops(case) / ceilings[precision] * 1e-6


def floor_us(case, precision, ceilings, operation="forward"):
    """(the larger of the two in us, "memory" or "compute")."""
    memory, compute = limits_us(case, precision, ceilings, operation)
    return (memory, "memory") if memory >= compute else (compute, "compute")
