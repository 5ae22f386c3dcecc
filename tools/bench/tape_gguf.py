"""Writes a GGUF model of true shape and random weights whose routing is a known function of the token.

The first `RESERVED` values of the residual stream are a channel that no layer writes to: the rows of
attn_output, ffn_down and ssm_out that would are zero. The embedding of token t puts [1, c(t)] there and
the routers read nothing else, so

    router logits of layer l at token t = popularity(l) + W(l) c(t)

c(t) is a random process over token ids, a part of which changes slowly: experts repeat from one token
to the next as they do in real models. Row t + 1 of the head is proportional to c(t), of equal length for all, so the most likely token
after t is t + 1: every engine that decodes greedily walks the same tape and meets the same experts.

With `--uncertainty` routers also read what layers write, so that the next layer's router, asked early, is
sometimes wrong, as it is in real models.

The walk says nothing about experts or attention: it does not change when a layer is skipped. The head
therefore has noise of 1e-2 outside of the channel, and engines are compared by their logits too.

    pip install -r requirements.txt
    python tape_gguf.py fits.gguf --layers 24 --experts 64 --ff 768 --alpha .349
    python tape_gguf.py big.gguf --layers 40 --experts 256 --ff 512 --alpha .708
"""
import argparse
import json
from statistics import NormalDist

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

# Values of the channel: a constant and the code of the token.
RESERVED = 128
HEAD_NOISE = 1e-2
# Layers add to the residual stream, so the channel's share shrinks with depth: with a gain of 1 the noise
# of the head overtakes it in 24 layers, and every fourth token leaves the tape.
HEAD_GAIN = 4
EMBEDDING_NOISE = 0.7
# A uniform 4-bit code has this standard deviation, an 8-bit one the other.
STD_4_BITS, STD_8_BITS = 4.61, 73.0
# Delta nets of the hybrid: state, key heads, value heads, taps of the convolution.
SSM_STATE, SSM_KEY_HEADS, SSM_VALUE_HEADS, SSM_TAPS = 128, 16, 32, 4


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--arch", choices=["qwen3moe", "qwen35moe"], default="qwen3moe")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--ff", type=int, default=768)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--quant", choices=["Q4_K", "Q4_0", "Q8_0"], default="Q4_K")
    parser.add_argument("--quant-experts", choices=["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"],
                        help="of routed experts, if another one")
    parser.add_argument("--sigma-b", type=float, default=0.3, help="how much more popular some experts are")
    parser.add_argument("--rho", type=float, default=0.8, help="how slowly the slow part of the code changes")
    parser.add_argument("--alpha", type=float, default=0.349, help="share of the slow part")
    parser.add_argument("--uncertainty", type=float, default=0, help="weight of what layers write in what routers say")
    return parser.parse_args()


def codes(vocab, rho, alpha):
    """c(t) for every token, [vocab, RESERVED - 1]: slow (autoregressive) and fast noise."""
    random = np.random.default_rng(1)
    width = RESERVED - 1
    fast = random.standard_normal((vocab, width)).astype(np.float32)
    steps = random.standard_normal((vocab, width)).astype(np.float32) * np.float32(np.sqrt(1 - rho**2))
    slow, state = np.empty_like(fast), random.standard_normal(width).astype(np.float32)
    for token in range(vocab):
        state = rho * state + steps[token]
        slow[token] = state
    return (np.sqrt(alpha) * slow + np.sqrt(1 - alpha) * fast).astype(np.float32)


def router(experts, hidden, layer, sigma, uncertainty):
    """[experts, hidden]: popularity in column 0, quantiles of a normal distribution; then noise, of another
    size outside of the channel."""
    random = np.random.default_rng(7 * 1000003 + layer)
    quantiles = [NormalDist().inv_cdf((expert + 0.5) / experts) for expert in range(experts)]
    popularity = np.array(quantiles, np.float32)
    random.shuffle(popularity)
    weights = np.zeros((experts, hidden), np.float32)
    weights[:, 0] = sigma * popularity
    weights[:, 1:RESERVED] = random.standard_normal((experts, RESERVED - 1)) / np.sqrt(RESERVED - 1)
    if uncertainty > 0:
        outside = random.standard_normal((experts, hidden - RESERVED))
        weights[:, RESERVED:] = uncertainty * outside / np.sqrt(hidden - RESERVED)
    return weights


def pack_q8_0(values):
    """[rows, cols] of f32 as blocks of 32."""
    blocks = values.reshape(-1, 32)
    scale = (np.abs(blocks).max(1) / 127).astype(np.float16)
    wide = scale.astype(np.float32)
    inverse = np.where(wide > 0, 1 / np.where(wide > 0, wide, 1), 0)
    packed = np.empty((len(blocks), 34), np.uint8)
    packed[:, :2] = scale.view(np.uint8).reshape(-1, 2)
    packed[:, 2:] = np.clip(np.rint(blocks * inverse[:, None]), -127, 127).astype(np.int8).view(np.uint8)
    return packed.reshape(values.shape[0], -1)


class Noise:
    """Random blocks: random codes under fixed scales, which is quick and as good as packed noise."""

    def __init__(self):
        self.random = np.random.Generator(np.random.SFC64(3))

    def bytes(self, count):
        return self.random.integers(0, 2**64, (count + 7) // 8, dtype=np.uint64).view(np.uint8)[:count]

    @staticmethod
    def std_of_codes(kind):
        """Standard deviation of random codes under a scale of one."""
        if kind in (Type.Q4_0, Type.Q8_0):
            return STD_4_BITS if kind == Type.Q4_0 else STD_8_BITS
        blocks = np.random.default_rng(7).integers(0, 256, (1000, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
        blocks[:, 0:2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
        return np.std(gguf.quants.dequantize(blocks, kind))

    def matrix(self, shape, kind, silent_rows=0):
        """Blocks of a tensor `[..., rows, cols]`; its first rows give zero."""
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        assert shape[-1] % block == 0, f"{shape} does not tile into blocks of {kind.name}"
        std = 1.0 / np.sqrt(shape[-1])
        packed = self.bytes(int(np.prod(shape, dtype=np.int64)) // block * block_bytes)
        packed = packed.reshape(*shape[:-1], shape[-1] // block, block_bytes)
        half = lambda value: np.frombuffer(np.float16(value).tobytes(), np.uint8)
        if kind == Type.Q4_K:
            # All scales and minima are 32: a weight is 32 d (q - 7.5).
            scale = std / STD_4_BITS / 32
            packed[..., 0:2], packed[..., 2:4] = half(scale), half(7.5 * scale)
            packed[..., 4:12], packed[..., 12:16] = 0xA0, 0
            packed[..., :silent_rows, :, 0:4] = 0
        else:
            packed[..., 0:2] = half(std / (self.std_of_codes(kind)))
            packed[..., :silent_rows, :, 0:2] = 0
        return packed.reshape(*shape[:-1], -1)


def vocabulary(size):
    """The 256 bytes, spelled as GPT-2 does, two spaces, and words that nobody says."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in plain}
    others = (byte for byte in range(256) if byte not in spelled)
    spelled |= {byte: chr(256 + at) for at, byte in enumerate(others)}
    space = spelled[32]
    words = [spelled[byte] for byte in range(256)] + [space + space]
    return words + [f"<w{at}>" for at in range(len(words), size)], [f"{space} {space}"]


def metadata(writer, args):
    writer.add_name(f"tape {args.arch}")
    writer.add_string("tape.arguments", json.dumps(vars(args)))
    writer.add_context_length(32768)
    writer.add_embedding_length(args.hidden)
    writer.add_block_count(args.layers)
    writer.add_feed_forward_length(args.ff * args.top_k)
    writer.add_head_count(args.heads)
    writer.add_head_count_kv(args.kv_heads)
    writer.add_key_length(args.head_dim)
    writer.add_value_length(args.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(args.experts)
    writer.add_expert_used_count(args.top_k)
    writer.add_expert_feed_forward_length(args.ff)
    writer.add_vocab_size(args.vocab)
    if args.arch == "qwen35moe":
        writer.add_expert_shared_feed_forward_length(args.ff)
        writer.add_rope_dimension_count(args.head_dim // 4)
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_ssm_conv_kernel(SSM_TAPS)
        writer.add_ssm_inner_size(SSM_STATE * SSM_VALUE_HEADS)
        writer.add_ssm_state_size(SSM_STATE)
        writer.add_ssm_time_step_rank(SSM_VALUE_HEADS)
        writer.add_ssm_group_count(SSM_KEY_HEADS)
        writer.add_uint32(f"{args.arch}.full_attention_interval", 4)
    tokens, merges = vocabulary(args.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * args.vocab)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(args.vocab - 1)
    writer.add_add_bos_token(False)


class Tensors:
    """Names and shapes first, bytes when they are written: the file does not fit memory."""

    def __init__(self, args):
        self.args, self.noise, self.random = args, Noise(), np.random.default_rng(5)
        self.rows = []

    def add(self, name, shape, kind, make):
        self.rows.append((name, shape, kind, make))

    def f32(self, name, values):
        self.add(name, values.shape, Type.F32, lambda: np.ascontiguousarray(values, np.float32))

    def noisy(self, name, shape, silent_rows=0, kind=None):
        kind = kind or Type[self.args.quant]
        self.add(name, shape, kind, lambda: self.noise.matrix(shape, kind, silent_rows))

    def model(self):
        args, hidden = self.args, self.args.hidden
        code = codes(args.vocab, args.rho, args.alpha)
        self.add("token_embd.weight", (args.vocab, hidden), Type.Q8_0, lambda: self.embedding(code))
        for layer in range(args.layers):
            self.layer(layer)
        self.f32("output_norm.weight", np.ones(hidden))
        self.add("output.weight", (args.vocab, hidden), Type.Q8_0, lambda: self.head(code))

    def embedding(self, code):
        values = self.random.standard_normal((self.args.vocab, self.args.hidden)).astype(np.float32)
        values *= EMBEDDING_NOISE
        values[:, 0], values[:, 1:RESERVED] = 1.0, code
        return pack_q8_0(values)

    def head(self, code):
        values = self.random.standard_normal((self.args.vocab, self.args.hidden)).astype(np.float32)
        values *= HEAD_NOISE
        values[:, 0], values[0, 1:RESERVED] = 0, 0
        values[1:, 1:RESERVED] = HEAD_GAIN * code[:-1] / np.linalg.norm(code[:-1], axis=1, keepdims=True)
        return pack_q8_0(values)

    def layer(self, layer):
        args, hidden, prefix = self.args, self.args.hidden, f"blk.{layer}."
        hybrid = args.arch == "qwen35moe"
        self.f32(prefix + "attn_norm.weight", np.ones(hidden))
        if hybrid and (layer + 1) % 4 != 0:
            self.delta_net(prefix)
        else:
            self.attention(prefix, gates=2 if hybrid else 1)
        self.f32(prefix + ("post_attention_norm.weight" if hybrid else "ffn_norm.weight"), np.ones(hidden))
        self.f32(prefix + "ffn_gate_inp.weight", router(args.experts, hidden, layer, args.sigma_b, args.uncertainty))
        experts = args.quant_experts and Type[args.quant_experts]
        self.noisy(prefix + "ffn_gate_exps.weight", (args.experts, args.ff, hidden), kind=experts)
        self.noisy(prefix + "ffn_up_exps.weight", (args.experts, args.ff, hidden), kind=experts)
        self.noisy(prefix + "ffn_down_exps.weight", (args.experts, hidden, args.ff), RESERVED, experts)
        if hybrid:
            self.f32(prefix + "ffn_gate_inp_shexp.weight", self.random.standard_normal(hidden) / np.sqrt(hidden))
            self.noisy(prefix + "ffn_gate_shexp.weight", (args.ff, hidden))
            self.noisy(prefix + "ffn_up_shexp.weight", (args.ff, hidden))
            self.noisy(prefix + "ffn_down_shexp.weight", (hidden, args.ff), silent_rows=RESERVED)

    def attention(self, prefix, gates):
        args, hidden = self.args, self.args.hidden
        queries, keys = args.heads * args.head_dim, args.kv_heads * args.head_dim
        self.noisy(prefix + "attn_q.weight", (queries * gates, hidden))
        self.noisy(prefix + "attn_k.weight", (keys, hidden))
        self.noisy(prefix + "attn_v.weight", (keys, hidden))
        self.noisy(prefix + "attn_output.weight", (hidden, queries), silent_rows=RESERVED)
        self.f32(prefix + "attn_q_norm.weight", np.ones(args.head_dim))
        self.f32(prefix + "attn_k_norm.weight", np.ones(args.head_dim))

    def delta_net(self, prefix):
        hidden = self.args.hidden
        keys, values = SSM_STATE * SSM_KEY_HEADS, SSM_STATE * SSM_VALUE_HEADS
        self.noisy(prefix + "attn_qkv.weight", (2 * keys + values, hidden))
        self.noisy(prefix + "attn_gate.weight", (values, hidden))
        taps = self.random.standard_normal((2 * keys + values, SSM_TAPS)) * 0.3
        self.f32(prefix + "ssm_conv1d.weight", taps.astype(np.float32))
        self.f32(prefix + "ssm_dt.bias", np.full(SSM_VALUE_HEADS, -1.0))
        self.f32(prefix + "ssm_a", np.full(SSM_VALUE_HEADS, -1.0))
        self.noisy(prefix + "ssm_beta.weight", (SSM_VALUE_HEADS, hidden), kind=Type.Q8_0)
        self.noisy(prefix + "ssm_alpha.weight", (SSM_VALUE_HEADS, hidden), kind=Type.Q8_0)
        self.f32(prefix + "ssm_norm.weight", np.ones(SSM_STATE))
        self.noisy(prefix + "ssm_out.weight", (hidden, values), silent_rows=RESERVED)

    def write(self, writer):
        for name, shape, kind, _ in self.rows:
            block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            if kind == Type.F32:
                writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
                continue
            packed = (*shape[:-1], shape[-1] // block * block_bytes)
            size = int(np.prod(packed, dtype=np.int64))
            writer.add_tensor_info(name, packed, np.dtype(np.uint8), size, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for *_, make in self.rows:
            writer.write_tensor_data(make())


def main():
    args = arguments()
    writer = gguf.GGUFWriter(args.out, args.arch)
    metadata(writer, args)
    tensors = Tensors(args)
    tensors.model()
    tensors.write(writer)
    writer.close()


if __name__ == "__main__":
    main()
