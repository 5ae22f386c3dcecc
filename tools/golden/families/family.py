"""What the generator has to know about a model family."""
from collections.abc import Callable
from dataclasses import dataclass, field

# Of the tiny checkpoints of every family. H must be a multiple of 64: mlx-lm quantises routers
# in groups of 64.
HIDDEN_SIZE = 64
NUM_LAYERS = 4
VOCAB_SIZE = 304
EOS_TOKEN_ID = 2

# What all Qwen configurations have in common.
QWEN_COMMON = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_cache": True,
}


@dataclass(frozen=True)
class Family:
    """One family, by the name of its `model_type`."""

    name: str
    # config.json as on the hub.
    config: dict
    # Class names of transformers, for the text model.
    config_class: str
    model_class: str
    # Norms multiply by 1 + weight, except that of the delta net. MLX stores 1 + weight.
    has_zero_centred_norms: bool = False
    # On the hub the experts of a layer are one tensor; otherwise one matrix per expert.
    has_fused_experts: bool = False
    # Weights that the hub keeps in f32.
    f32_suffixes: tuple[str, ...] = ()
    # From a name of transformers' text model to that on the hub.
    hub_name: Callable[[str], str] = lambda name: name
    # Tensors that real checkpoints carry and an engine must skip, with their shapes.
    decoys: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def text_config(self) -> dict:
        """The part of the configuration that describes the text model."""
        return self.config.get("text_config", self.config)

    @property
    def is_multimodal(self) -> bool:
        """Whether the text model is a part of the configuration."""
        return "text_config" in self.config
