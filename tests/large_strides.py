"""Layers of large strides and few input channels, for the families that have their weights in registers."""

from reference import Problem

FCN32S = Problem(1, 21, 21, (16, 16), (64, 64), (32, 32))
FCN16S = Problem(1, 21, 21, (26, 34), (32, 32), (16, 16))
FCN8S = Problem(1, 21, 21, (70, 70), (16, 16), (8, 8))
CLIPSEG = Problem(4, 64, 1, (22, 22), (16, 16), (16, 16))
BDCN = Problem(1, 1, 1, (41, 61), (16, 16), (8, 8))


def problem(rng, most_words=48, channels_of_word=1):
    """A random problem of a large stride, K at most `most_words`; kernels are often multiples of the stride."""
    while True:
        groups = rng.choice((1, 1, 1, 2, 3))
        flat = rng.random() < 0.25
        stride = (1 if flat else rng.randint(1, 20), rng.choice((4 * rng.randint(2, 9), rng.randint(8, 36))))
        kernel = tuple(s * rng.randint(1, 2) if rng.random() < 0.6 else rng.randint(1, 2 * s + 3) for s in stride)
        p = Problem(
            batch=rng.randint(1, 3),
            in_channels=groups * rng.choice((rng.randint(1, 8), rng.randint(1, most_words * channels_of_word))),
            out_channels=groups * rng.randint(1, 6),
            size=(1 if flat else rng.randint(1, 12), rng.randint(1, 16)),
            kernel=(1 if flat else kernel[0], kernel[1]),
            stride=stride,
            padding=(rng.choice((0, rng.randint(0, 20))), rng.choice((0, 4 * rng.randint(0, 4), rng.randint(0, 20)))),
            output_padding=tuple(rng.randrange(s) for s in stride),
            groups=groups,
        )
        taps = -(-p.kernel[0] // stride[0]) * -(-p.kernel[1] // stride[1])
        if min(p.y_shape) > 0 and -(-p.in_channels // groups // channels_of_word) * taps <= most_words:
            return p
