"""Writes a matrix in fp8 as vendors publish it, with the values that it decodes to.

OUT/fp8_quant.safetensors    `codes` (e4m3, as bytes), `scales` (one per 128 rows and columns) and
                             `dequant`; every code that is a number occurs

Floats of eight bits are those of ml_dtypes, which JAX and TensorFlow use. A product is rounded to
f32 once.
"""
import argparse
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

SEED = 8
# The last tiles are cut off in both directions.
ROWS, COLUMNS, TILE = 260, 192, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the file")
    out = parser.parse_args().out
    rng = np.random.default_rng(SEED)
    numbers = np.setdiff1d(np.arange(256), [0x7F, 0xFF]).astype(np.uint8)
    codes = rng.choice(numbers, (ROWS, COLUMNS))
    codes.flat[: numbers.size] = numbers
    tiles = (-(-ROWS // TILE), -(-COLUMNS // TILE))
    scales = np.exp(rng.normal(-6, 2, tiles)).astype(np.float32)
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    spread = np.kron(scales, np.ones((TILE, TILE), np.float32))[:ROWS, :COLUMNS]
    tensors = {"codes": codes, "scales": scales, "dequant": values * spread}
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "fp8_quant.safetensors")


if __name__ == "__main__":
    main()
