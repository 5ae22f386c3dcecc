"""Writes blocks of every quantisation format with the values that they decode to.

OUT/mlx_quant.safetensors     MLX: affine in 2, 3, 4, 5, 6 and 8 bits, groups of 32, 64 and 128,
                              with products; mxfp4, nvfp4 and mxfp8
OUT/gguf_quant.safetensors    every block type of GGUF that gguf-py can decode
OUT/gguf_codebooks.safetensors  what the entries of the codebooks of IQ1, IQ2 and IQ3 stand for
OUT/quant.json                packed sizes, errors, agreement with decoders written here
"""
import argparse
import json
from pathlib import Path

import mlx.core as mx
import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as GgufType
from safetensors.numpy import save_file

from reference.mlx_weights import dequantise

SEED = 7
ROWS, COLUMNS, PRODUCT_ROWS = 6, 256, 3
AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUPS = (32, 64, 128)
# Mode, group size, bits.
FLOAT_MODES = (("mxfp4", 32, 4), ("nvfp4", 16, 4), ("mxfp8", 32, 8))
FP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
# Where the f16 scales of a block lie; random bytes there would often be infinite. 0 elsewhere.
GGUF_SCALE_OFFSETS = {
    GgufType.Q2_K: (80, 82),
    GgufType.Q3_K: (108,),
    GgufType.Q4_K: (0, 2),
    GgufType.Q5_K: (0, 2),
    GgufType.Q6_K: (208,),
}


def make_weights(rng: np.random.Generator) -> np.ndarray:
    """Random rows with groups that are constant, zero, one-sided, or have an outlier."""
    weights = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32) * 0.1
    weights[0, :64] = 0.05
    weights[1, :32] = 0
    weights[2, 5] = 3.0
    weights[3] = np.abs(weights[3])
    weights[4] = -np.abs(weights[4])
    return weights


def root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).mean()))


def largest(values: np.ndarray) -> float:
    return float(np.abs(values).max())


def affine_vectors(weights: np.ndarray, x: np.ndarray, bits: int, group_size: int):
    """Packed integers, bf16 scales and biases as bits, decoded values, and x · wᵀ in f32."""
    bf16 = mx.array(weights).astype(mx.bfloat16)
    packed, scales, biases = mx.quantize(bf16, group_size, bits)
    scales_f32, biases_f32 = scales.astype(mx.float32), biases.astype(mx.float32)
    decoded = np.array(mx.dequantize(packed, scales_f32, biases_f32, group_size, bits))
    own = dequantise(
        np.array(packed), np.array(scales_f32), np.array(biases_f32), bits, group_size
    )
    product = np.array(mx.quantized_matmul(
        mx.array(x), packed, scales_f32, biases_f32, True, group_size, bits
    ))
    tensors = {
        "q": np.array(packed),
        "s_bf16_bits": np.array(scales.view(mx.uint16)),
        "b_bf16_bits": np.array(biases.view(mx.uint16)),
        "dequant": decoded,
        "y": product,
    }
    report = {
        "dequant_numpy_vs_mlx": largest(decoded - own),
        "matmul_vs_dequant": largest(product - x @ own.T),
        "packed_cols": packed.shape[1],
        "quant_rmse": root_mean_square(decoded - weights),
    }
    return tensors, report


def float_vectors(weights: np.ndarray, mode: str, group_size: int, bits: int):
    """Packed values, scales, and decoded values of a floating-point format."""
    packed, scales = mx.quantize(mx.array(weights), group_size, bits, mode=mode)[:2]
    decoded = np.array(
        mx.dequantize(packed, scales, None, group_size, bits, mode=mode, dtype=mx.float32)
    )
    tensors = {"q": np.array(packed), "s": np.array(scales), "dequant": decoded}
    if mode == "mxfp4":
        pairs = tensors["q"].view(np.uint8)
        nibbles = np.stack([pairs & 15, pairs >> 4], -1).reshape(ROWS, -1)
        scale = np.exp2(tensors["s"].astype(np.float32) - 127)
        own = FP4_VALUES[nibbles] * np.repeat(scale, group_size, -1)
        return tensors, {"numpy_vs_mlx": largest(decoded - own)}
    return tensors, {
        "rmse": root_mean_square(decoded - weights),
        "scales_dtype": str(tensors["s"].dtype),
        "scales_shape": list(scales.shape),
    }


def mlx_vectors(weights: np.ndarray, x: np.ndarray) -> tuple[dict[str, np.ndarray], dict]:
    """All formats of MLX."""
    tensors, report = {"w": weights, "x": x}, {}
    for bits in AFFINE_BITS:
        for group_size in AFFINE_GROUPS:
            name = f"affine.b{bits}.g{group_size}"
            found, report[name] = affine_vectors(weights, x, bits, group_size)
            tensors |= {f"{name}.{key}": value for key, value in found.items()}
    for mode, group_size, bits in FLOAT_MODES:
        found, report[mode] = float_vectors(weights, mode, group_size, bits)
        tensors |= {f"{mode}.{key}": value for key, value in found.items()}
    return tensors, report


def gguf_blocks(weights: np.ndarray, kind: GgufType, rng: np.random.Generator) -> np.ndarray:
    """The weights in blocks of this type, or random blocks where gguf-py cannot quantise."""
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    try:
        return quants.quantize(weights, kind)
    except NotImplementedError:
        pass
    row_bytes = COLUMNS // block_values * block_bytes
    blocks = rng.integers(0, 256, size=(ROWS, row_bytes), dtype=np.uint8)
    for offset in GGUF_SCALE_OFFSETS.get(kind, (0,)):
        scale = np.array([0.01 * (offset + 3) / (offset + 1)], np.float16)
        blocks.reshape(-1, block_bytes)[:, offset : offset + 2] = scale.view(np.uint8)
    return blocks


def gguf_vectors(
    weights: np.ndarray, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict]:
    """All block types that gguf-py decodes to finite values."""
    tensors, report = {"w": weights}, {}
    for kind in quants._type_traits:
        blocks = gguf_blocks(weights, kind, rng)
        decoded = quants.dequantize(blocks, kind).astype(np.float32)
        if not np.isfinite(decoded).all():
            report[kind.name] = "non-finite"
            continue
        tensors[f"{kind.name}.bytes"] = np.ascontiguousarray(blocks).view(np.uint8)
        tensors[f"{kind.name}.dequant"] = decoded
        block_values, block_bytes = GGML_QUANT_SIZES[kind]
        report[kind.name] = {"block": block_values, "bytes": block_bytes, "max": largest(decoded)}
    return tensors, report


def gguf_codebooks() -> dict[str, np.ndarray]:
    """One row of values per entry."""
    books = {}
    for kind in ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"):
        book = getattr(quants, kind)
        book.init_grid()
        books[kind] = np.asarray(book.grid).reshape(book.grid_shape).astype(np.int8)
    return books


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(SEED)
    weights = make_weights(rng)
    x = rng.standard_normal((PRODUCT_ROWS, COLUMNS)).astype(np.float32)
    mlx_tensors, mlx_report = mlx_vectors(weights, x)
    gguf_tensors, gguf_report = gguf_vectors(weights, rng)
    save_file(mlx_tensors, out / "mlx_quant.safetensors")
    save_file(gguf_tensors, out / "gguf_quant.safetensors")
    save_file(gguf_codebooks(), out / "gguf_codebooks.safetensors")
    (out / "quant.json").write_text(json.dumps(mlx_report | gguf_report, indent=1))


if __name__ == "__main__":
    main()
