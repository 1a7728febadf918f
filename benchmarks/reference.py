"""The float64 result of a sample of a layer's outputs, and the distance to it.

All outputs of the larger layers would take seconds each in float64. The sample keeps the whole image, all borders and
the whole reduction, and leaves out whole batch elements, groups and channels that are not reduced over.
"""

from dataclasses import dataclass

import torch

FLOPS = 8e9
ELEMENTS = 2**25
# Well above what rounding in the precision gives; a result beyond it is wrong.
LARGEST_ERROR = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 1e-2, "bf16": 5e-2}


@dataclass
class Reference:
    """`value` holds the sampled part: x-like (n, groups, channels, H, W) or w-like (groups, cin, cout, kh, kw)."""

    operation: str
    n: torch.Tensor
    groups: torch.Tensor
    cin: torch.Tensor
    cout: torch.Tensor
    count: int
    value: torch.Tensor

    def relative_l2(self, result):
        """||result - value|| / ||value|| over the sample, for a full result of the operator. NaN stays NaN."""
        if self.operation == "weight_grad":
            part = _pick_weight(result, self)
        else:
            part = _pick_image(result, self, self.cout if self.operation == "forward" else self.cin)
        norm = torch.linalg.vector_norm
        return (norm(part.double() - self.value) / norm(self.value)).item()


def _pick_image(image, sample, channels):
    image = image.index_select(0, sample.n).unflatten(1, (sample.count, -1))
    return image.index_select(1, sample.groups).index_select(2, channels)


def _pick_weight(weight, sample):
    weight = weight.unflatten(0, (sample.count, -1)).index_select(0, sample.groups)
    return weight.index_select(1, sample.cin).index_select(2, sample.cout)


def _sample_sizes(case, operation):
    size = {"n": case.n, "groups": case.groups, "cin": case.cin // case.groups, "cout": case.cout // case.groups}
    reduced = {"forward": "cin", "input_grad": "cout", "weight_grad": "n"}[operation]
    pixels, image = case.h * case.w, max(case.h * case.w, case.out_size[0] * case.out_size[1])

    def too_large(dimension):
        n, g, i, o = (size[k] for k in ("n", "groups", "cin", "cout"))
        # A dimension is not cut for the sake of a tensor that it is no dimension of.
        elements = n * g * max(i * pixels if dimension != "cout" else 0, o * image if dimension != "cin" else 0)
        return elements > ELEMENTS or 2 * n * g * i * o * case.kh * case.kw * pixels > FLOPS

    for dimension in ("n", "groups", "cin", "cout"):
        while dimension != reduced and size[dimension] > 1 and too_large(dimension):
            size[dimension] = (size[dimension] + 1) // 2
    return size


def make_reference(case, operation, x, w, bias=None, dy=None):
    """The reference of one layer.

    Args:
        x: (n, cin, h, w), w: (cin, cout / groups, kh, kw), bias: (cout,) or None, dy: as the output; in the tested
            dtype, dy for the gradients only.
    """
    full = {"n": case.n, "groups": case.groups, "cin": case.cin // case.groups, "cout": case.cout // case.groups}
    picked = {
        # Evenly spaced, the first and the last among them.
        name: torch.linspace(0, full[name] - 1, size, dtype=torch.float64, device=x.device).round().long()
        for name, size in _sample_sizes(case, operation).items()
    }
    sample = Reference(operation, **picked, count=case.groups, value=None)
    weight = _pick_weight(w, sample).double()  # (g, i, o, kh, kw)
    image = _pick_image(x, sample, sample.cin).double() if operation != "input_grad" else None  # (n, g, i, h, w)
    (out_h, out_w), h, w_ = case.out_size, case.h, case.w
    n, g, i, o = (len(picked[k]) for k in ("n", "groups", "cin", "cout"))

    # Output o is canvas position o + p, where input i meets tap t at i s + t d: no border needs a thought.
    canvas_h = max((h - 1) * case.sh + case.dh * (case.kh - 1) + 1, case.ph + out_h)
    canvas_w = max((w_ - 1) * case.sw + case.dw * (case.kw - 1) + 1, case.pw + out_w)
    canvas = torch.zeros(n, g, o, canvas_h, canvas_w, dtype=torch.float64, device=x.device)
    inside = canvas[..., case.ph : case.ph + out_h, case.pw : case.pw + out_w]
    if operation != "forward":
        inside.copy_(_pick_image(dy, sample, sample.cout))
        shape = (n, g, i, h, w_) if operation == "input_grad" else (g, i, o, case.kh, case.kw)
        result = torch.zeros(shape, dtype=torch.float64, device=x.device)
    for a in range(case.kh):
        for b in range(case.kw):
            seen = canvas[..., a * case.dh :: case.sh, b * case.dw :: case.sw][..., :h, :w_]
            tap = weight[..., a, b]
            if operation == "forward":
                seen += torch.matmul(tap.mT, image.flatten(3)).view(n, g, o, h, w_)
            elif operation == "input_grad":
                result += torch.matmul(tap, seen.flatten(3)).view(n, g, i, h, w_)
            else:
                result[..., a, b] = torch.matmul(image.flatten(3), seen.flatten(3).mT).sum(0)
    if operation == "forward":
        result = inside.clone()
        if bias is not None:
            chosen = bias.double().view(case.groups, -1).index_select(0, sample.groups).index_select(1, sample.cout)
            result += chosen[:, :, None, None]
    sample.value = result
    return sample
