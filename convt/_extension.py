"""Loads ``convt._C`` and with it the operators ``torch.ops.convt``."""

import warnings

import torch

_REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps -e ."

try:
    from . import _C
except ModuleNotFoundError as error:
    if error.name != "convt._C":
        raise
    raise ImportError(
        f"convt's native part is not built for this Python. In the folder that holds setup.py, run: {_REBUILD}"
    ) from error
except ImportError as error:
    raise ImportError(
        f"convt's native part does not load into torch {torch.__version__}; it must be built again for each minor "
        f"version of torch ({_REBUILD}). {error}"
    ) from error


def build_info() -> dict:
    """What this convt was built from and with.

    Returns a dict with ``version``, ``torch`` (the version it was built against), ``cuda`` (nvcc's version, or None in
    a build without CUDA), ``cuda_note`` (where nvcc was found, or why there is no CUDA), ``archs`` (a list such as
    ``["8.0+PTX", "9.0a"]``) and ``source_digest`` (SHA-256 over csrc/).
    """
    return _C.build_info()


def _check_build():
    info = build_info()
    built, running = (version.split(".")[:2] for version in (info["torch"], torch.__version__))
    if built != running:
        raise ImportError(
            f"convt was built for torch {info['torch']}, but this is torch {torch.__version__}. "
            f"Build it again: {_REBUILD}"
        )
    if info["cuda"] is None and torch.cuda.is_available():
        warnings.warn(
            f"convt was built without CUDA ({info['cuda_note']}) and will refuse CUDA tensors. Build it again where "
            f"nvcc is found: CONVT_CUDA=1 {_REBUILD}",
            stacklevel=3,
        )


_check_build()

from . import _rules  # noqa: E402, F401  (registers with the operators that _C has just defined)
