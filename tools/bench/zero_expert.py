"""Copies a GGUF model and silences one expert of one layer: what a comparison of logits must notice.

    python zero_expert.py fits.gguf damaged.gguf --layer 3 --expert 17
"""
import argparse
import shutil

import gguf


def silence(path, layer, expert):
    """Zeroes the down projection of an expert, in place; gives its bytes."""
    name = f"blk.{layer}.ffn_down_exps.weight"
    tensor = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    experts = int(tensor.shape[-1])
    assert expert < experts, f"{name} has {experts} experts"
    size = int(tensor.n_bytes) // experts
    with open(path, "r+b") as file:
        file.seek(int(tensor.data_offset) + expert * size)
        file.write(bytes(size))
    return size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--layer", type=int, required=True)
    parser.add_argument("--expert", type=int, required=True)
    args = parser.parse_args()
    shutil.copyfile(args.model, args.out)
    size = silence(args.out, args.layer, args.expert)
    print(f"{args.out}: {size} bytes of layer {args.layer}, expert {args.expert} are zero")


if __name__ == "__main__":
    main()
