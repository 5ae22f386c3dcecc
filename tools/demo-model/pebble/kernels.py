"""Compiles and calls the kernels of ../kernels.

The sizes of the network and the type of activations are compiled in; the library is kept in
work/ under a name that depends on them and on the sources.
"""
import ctypes
import hashlib
import subprocess
from pathlib import Path

import torch

from .config import CONFIG

_FOLDER = Path(__file__).resolve().parents[1]
# A segment of expert rows is padded to a multiple of this; see kernels/experts.cpp.
SEGMENT_ROWS = 32

_SIZES = {
    "VOCAB_SIZE": CONFIG.vocab_size,
    "HIDDEN_SIZE": CONFIG.hidden_size,
    "NUM_HEADS": CONFIG.num_attention_heads,
    "NUM_KV_HEADS": CONFIG.num_key_value_heads,
    "HEAD_DIM": CONFIG.head_dim,
    "ROPE_DIM": CONFIG.rope_dim,
    "KEY_HEADS": CONFIG.linear_num_key_heads,
    "VALUE_HEADS": CONFIG.linear_num_value_heads,
    "KEY_DIM": CONFIG.linear_key_head_dim,
    "VALUE_DIM": CONFIG.linear_value_head_dim,
    "CONV_TAPS": CONFIG.linear_conv_kernel_dim,
    "NUM_EXPERTS": CONFIG.num_experts,
    "TOP_K": CONFIG.num_experts_per_tok,
    "SHARED_SIZE": CONFIG.shared_expert_intermediate_size,
    "SEGMENT_ROWS": SEGMENT_ROWS,
}
_FLAGS = [
    "-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-shared", "-fPIC",
    *[f"-D{name}={value}" for name, value in _SIZES.items()],
]


class Kernels:
    """The compiled library for one type of activations: bf16 to train, f32 to check."""

    def __init__(self, activation_type: torch.dtype):
        self.activation_type = activation_type
        self._library = ctypes.CDLL(str(_build(activation_type)))

    def __call__(self, name: str, *arguments) -> None:
        """Calls a kernel. Tensors are passed by address and must be contiguous."""
        getattr(self._library, name)(*map(_as_c, arguments))

    def empty(self, *shape: int) -> torch.Tensor:
        """An uninitialised tensor of activations."""
        return torch.empty(*shape, dtype=self.activation_type)


def columns_from(matrix: torch.Tensor, column: int) -> ctypes.c_void_p:
    """The address of a column, for kernels that take the stride of their rows."""
    assert matrix.is_contiguous()
    return ctypes.c_void_p(matrix.data_ptr() + column * matrix.element_size())


def _as_c(value):
    if value is None:
        return ctypes.c_void_p(0)
    if isinstance(value, torch.Tensor):
        assert value.is_contiguous(), value.shape
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, float):
        return ctypes.c_float(value)
    if isinstance(value, int):
        return ctypes.c_long(value)
    return value


def _build(activation_type: torch.dtype) -> Path:
    sources = sorted((_FOLDER / "kernels").iterdir())
    flags = [*_FLAGS, "-DACTIVATION_F32"] if activation_type == torch.float32 else _FLAGS
    digest = hashlib.md5(" ".join(flags).encode())
    for source in sources:
        digest.update(source.read_bytes())
    library = _FOLDER / "work" / f"kernels-{digest.hexdigest()[:12]}.so"
    if not library.exists():
        library.parent.mkdir(exist_ok=True)
        unfinished = library.with_suffix(".tmp")
        units = [str(source) for source in sources if source.suffix == ".cpp"]
        subprocess.run(["g++", *flags, *units, "-o", str(unfinished)], check=True)
        unfinished.rename(library)
    return library
