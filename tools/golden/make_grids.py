"""Writes the codebooks of ggml's IQ1, IQ2 and IQ3 formats as a Rust file.

    python make_grids.py > ../../crates/fm-format/src/quant/ggml/grids.rs

An entry is a u16 with one code per weight, the first lowest: two bits in IQ1 and IQ2, three in IQ3.
What a code stands for is the same in every entry of a book, and checked here.
"""
import numpy as np
from gguf import quants

HEAD = '''//! Codebooks of `iq.rs`, written by `tools/golden/make_grids.py`.
//!
//! An entry is one code per weight, the first lowest.
'''
BOOKS = (
    ("IQ1", quants.IQ1_S, (-1, 0, 1), "eight two-bit codes, for `iq1_s` and `iq1_m`"),
    ("IQ2_XXS", quants.IQ2_XXS, (8, 25, 43), "eight two-bit codes"),
    ("IQ2_XS", quants.IQ2_XS, (8, 25, 43), "eight two-bit codes"),
    ("IQ2_S", quants.IQ2_S, (8, 25, 43), "eight two-bit codes"),
    ("IQ3_XXS", quants.IQ3_XXS, (4, 12, 20, 28, 36, 44, 52, 62), "four three-bit codes"),
    ("IQ3_S", quants.IQ3_S, (1, 3, 5, 7, 9, 11, 13, 15), "four three-bit codes"),
)
PER_LINE = 12


def entries(kind: type, values: tuple[int, ...]) -> np.ndarray:
    """One number per entry of the book."""
    kind.init_grid()
    grid = np.asarray(kind.grid).reshape(kind.grid_shape).astype(int)
    codes = np.array([[values.index(value) for value in entry] for entry in grid])
    bits = 2 if len(values) == 3 else 3
    return (codes << (bits * np.arange(codes.shape[1]))).sum(axis=1)


def main() -> None:
    print(HEAD, end="")
    for name, kind, values, what in BOOKS:
        numbers = [f"0x{number:04x}" for number in entries(kind, values)]
        print(f"\n/// {what.capitalize()}.")
        print("#[rustfmt::skip]")
        print(f"pub static {name}: [u16; {len(numbers)}] = [")
        for first in range(0, len(numbers), PER_LINE):
            print("    " + ", ".join(numbers[first : first + PER_LINE]) + ",")
        print("];")


if __name__ == "__main__":
    main()
