"""llama.cpp through the library that `pip install llama-cpp-python` builds; no Python in its loops.

    python llama.py MODEL prefill 512 --no-repack      one JSON line with seconds and tokens
    python llama.py MODEL decode 64 --at 16

Prompts are the tokens 0, 1, 2, …; what is written must walk on along the tape, if the model is one.
"""
import argparse
import ctypes
import json
import os
import time

import llama_cpp as lib
import numpy as np

LOAD_NONE, LOAD_MMAP = 0, 1
TYPE_F32, FLASH_OFF = 0, 0


class Model:
    """A model with one context. `exact` keeps keys and values in f32, and attention unfused."""

    def __init__(self, path, context, threads=2, repack=True, mmap=True, exact=False):
        self.quiet = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self.quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.load_mode = LOAD_MMAP if mmap else LOAD_NONE
        params.use_extra_bufts = repack
        self.model = lib.llama_model_load_from_file(os.fsencode(path), params)
        assert self.model, f"llama.cpp cannot load {path}"
        params = lib.llama_context_default_params()
        params.n_ctx = context
        params.n_threads = params.n_threads_batch = threads
        if exact:
            params.type_k = params.type_v = TYPE_F32
            params.flash_attn_type = FLASH_OFF
        self.batch_max = params.n_batch
        self.context = lib.llama_init_from_model(self.model, params)
        assert self.context, f"llama.cpp has no room for a context of {context}"
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def clear(self):
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)

    def feed(self, tokens):
        """Takes tokens in; logits of the last one are kept."""
        for first in range(0, len(tokens), self.batch_max):
            part = tokens[first : first + self.batch_max]
            array = (ctypes.c_int32 * len(part))(*part)
            code = lib.llama_decode(self.context, lib.llama_batch_get_one(array, len(part)))
            assert code == 0, f"llama_decode gave {code}"

    def logits(self):
        """After the last token that was fed; a view that the next call overwrites."""
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(self.context, -1), (self.vocab,))

    def prefill(self, count):
        """Seconds for a prompt and its first token."""
        self.clear()
        tokens = [token % self.vocab for token in range(count)]
        start = time.perf_counter()
        self.feed(tokens)
        self.logits().argmax()
        return time.perf_counter() - start

    def decode(self, count, windows, at):
        """Seconds per window of one text, and whether it walked the tape."""
        self.clear()
        self.feed([token % self.vocab for token in range(at)])
        seconds, token, walked = [], int(self.logits().argmax()), True
        position = at
        for _ in range(windows):
            start = time.perf_counter()
            for _ in range(count):
                walked &= token == position % self.vocab
                self.feed([token])
                token = int(self.logits().argmax())
                position += 1
            seconds.append(time.perf_counter() - start)
        return seconds, walked


def read_bytes():
    """Bytes that this process had read from disks."""
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("read_bytes")).split()[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("what", choices=["prefill", "decode"])
    parser.add_argument("tokens", type=int)
    parser.add_argument("--at", type=int, default=16)
    parser.add_argument("--windows", type=int, default=1)
    parser.add_argument("--warm-up", type=int, default=512, help="tokens before anything is measured")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-repack", dest="repack", action="store_false")
    parser.add_argument("--no-mmap", dest="mmap", action="store_false")
    args = parser.parse_args()
    needed = max(args.warm_up, args.tokens, args.at + (args.windows + 1) * args.tokens)
    model = Model(args.model, needed + 64, args.threads, args.repack, args.mmap)
    if args.warm_up:
        model.prefill(args.warm_up)
    before = read_bytes()
    if args.what == "prefill":
        seconds, walked = [model.prefill(args.tokens) for _ in range(args.windows)], None
    else:
        # The first window is not measured.
        seconds, walked = model.decode(args.tokens, args.windows + 1, args.at)
        seconds = seconds[1:]
    read = read_bytes() - before
    print(json.dumps({"tokens": args.tokens, "seconds": seconds, "walked": walked, "read_bytes": read}))


if __name__ == "__main__":
    main()
