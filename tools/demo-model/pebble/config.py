"""The sizes of the network, spelt as in a checkpoint's config.json."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """A qwen3_5_moe text model. Every size that a matrix is quantised along divides by 64."""

    vocab_size: int = 2048
    hidden_size: int = 192
    num_hidden_layers: int = 8
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    partial_rotary_factor: float = 0.25
    rope_theta: float = 100000.0
    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 8
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    num_experts: int = 32
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 64
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True

    def is_full_attention(self, layer: int) -> bool:
        """Whether the mixer of the layer is full attention; otherwise it is a delta net."""
        return (layer + 1) % self.full_attention_interval == 0

    @property
    def rope_dim(self) -> int:
        """Dimensions of a head that rope turns."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def linear_value_size(self) -> int:
        """All value heads of a delta net."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def linear_conv_size(self) -> int:
        """Query, key and value of a delta net, which its convolution runs over."""
        key_size = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * key_size + self.linear_value_size

    @property
    def attention_size(self) -> int:
        """All query heads of full attention."""
        return self.num_attention_heads * self.head_dim

    @property
    def rope_parameters(self) -> dict:
        """The entry of the same name in config.json; the mrope keys only matter for images."""
        return {
            "rope_type": "default",
            "rope_theta": self.rope_theta,
            "partial_rotary_factor": self.partial_rotary_factor,
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
        }


CONFIG = Config()
