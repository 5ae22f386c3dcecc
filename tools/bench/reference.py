"""A qwen3moe GGUF in f64, straight from the equations: who is right when two engines differ?

`activations="ggml"` also rounds the inputs of every product as llama.cpp's kernels do: to 8 bits, in
blocks of 256 (Q8_K) before k-quants and of 32 (Q8_0) before Q8_0.
"""
import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type


def blocks(x, size):
    return x.reshape(*x.shape[:-1], -1, size)


def round_q8_k(x):
    """One scale per 256: the value of largest magnitude becomes -127."""
    parts = blocks(x.astype(np.float32), 256)
    at = np.abs(parts).argmax(-1, keepdims=True)
    extreme = np.take_along_axis(parts, at, -1)
    inverse = np.where(extreme != 0, np.float32(-127) / np.where(extreme != 0, extreme, 1), 0).astype(np.float32)
    codes = np.minimum(127, np.rint(parts * inverse))
    scale = np.where(inverse != 0, 1 / np.where(inverse != 0, inverse, 1), 0).astype(np.float32)
    return (codes * scale).reshape(x.shape).astype(np.float64)


def round_q8_0(x):
    """One f16 scale per 32."""
    parts = blocks(x.astype(np.float32), 32)
    scale = np.abs(parts).max(-1, keepdims=True) / np.float32(127)
    codes = np.rint(parts * np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0))
    return (codes * scale.astype(np.float16).astype(np.float32)).reshape(x.shape).astype(np.float64)


class Reference:
    def __init__(self, path, activations="exact"):
        reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        field = lambda name: reader.fields[f"qwen3moe.{name}"].contents()
        self.layers, self.top_k = field("block_count"), field("expert_used_count")
        self.heads, self.kv_heads = field("attention.head_count"), field("attention.head_count_kv")
        self.head_dim, self.eps = field("attention.key_length"), field("attention.layer_norm_rms_epsilon")
        self.base = field("rope.freq_base")
        self.rounds = activations == "ggml"

    def vector(self, name):
        return np.asarray(self.tensors[name].data, np.float64)

    def rows(self, name, select=slice(None)):
        tensor = self.tensors[name]
        return gguf.quants.dequantize(tensor.data[select], tensor.tensor_type).astype(np.float64)

    def times(self, name, x, select=slice(None)):
        """x Wᵀ."""
        kind = self.tensors[name].tensor_type
        if self.rounds and kind == Type.Q4_K:
            x = round_q8_k(x)
        elif self.rounds and kind == Type.Q8_0:
            x = round_q8_0(x)
        return x @ self.rows(name, select).T

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.eps) * self.vector(name)

    def rope(self, x):
        """[positions, heads, dim]: value i turns with value i + dim / 2."""
        half = self.head_dim // 2
        angles = np.arange(len(x))[:, None] * self.base ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def attention(self, prefix, x):
        shape = lambda name, heads: self.times(prefix + name, x).reshape(len(x), heads, self.head_dim)
        q = self.rope(self.norm(shape("attn_q.weight", self.heads), prefix + "attn_q_norm.weight"))
        k = self.rope(self.norm(shape("attn_k.weight", self.kv_heads), prefix + "attn_k_norm.weight"))
        v = shape("attn_v.weight", self.kv_heads)
        k, v = (np.repeat(each, self.heads // self.kv_heads, 1) for each in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.head_dim)
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)
        return self.times(prefix + "attn_output.weight", mixed.reshape(len(x), -1))

    def experts(self, prefix, x):
        scores = x @ self.vector(prefix + "ffn_gate_inp.weight").T
        chosen = np.argsort(-scores, kind="stable")[:, : self.top_k]
        weights = np.take_along_axis(scores, chosen, 1)
        weights = np.exp(weights - weights.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        out = np.zeros_like(x)
        for expert in np.unique(chosen):
            rows, place = np.nonzero(chosen == expert)
            gate = self.times(prefix + "ffn_gate_exps.weight", x[rows], expert)
            up = self.times(prefix + "ffn_up_exps.weight", x[rows], expert)
            y = self.times(prefix + "ffn_down_exps.weight", gate / (1 + np.exp(-gate)) * up, expert)
            out[rows] += weights[rows, place][:, None] * y
        return out

    def logits(self, tokens):
        """[positions, vocabulary]."""
        x = self.rows("token_embd.weight", tokens)
        for layer in range(self.layers):
            prefix = f"blk.{layer}."
            x = x + self.attention(prefix, self.norm(x, prefix + "attn_norm.weight"))
            x = x + self.experts(prefix, self.norm(x, prefix + "ffn_norm.weight"))
        return self.times("output.weight", self.norm(x, "output_norm.weight"))
