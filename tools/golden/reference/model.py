"""transformers' own models in f32: building, running, and watching them."""
import copy
from pathlib import Path

import torch
import transformers

from families import Family


def _config(family: Family):
    # from_dict edits nested dictionaries in place.
    values = copy.deepcopy(family.text_config)
    for key in ("architectures", "torch_dtype", "dtype"):
        values.pop(key, None)
    return getattr(transformers, family.config_class).from_dict(values)


def _in_f32(model: torch.nn.Module) -> torch.nn.Module:
    """Plain PyTorch operations instead of fused kernels."""
    model = model.float().eval()
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    return model


def build(family: Family) -> torch.nn.Module:
    """The model with weights of its own, to be replaced."""
    config = _config(family)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return _in_f32(getattr(transformers, family.model_class)(config))


def build_bf16(family: Family, model: torch.nn.Module) -> torch.nn.Module:
    """The same model in bf16, apart from what every implementation keeps in f32."""
    rounded = build(family)
    rounded.load_state_dict(model.state_dict())
    rounded = rounded.bfloat16()
    exact = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in [*rounded.named_parameters(), *rounded.named_buffers()]:
        if name.endswith(("A_log", "inv_freq")):
            tensor.data = exact[name].data.clone()
    return rounded


def load(family: Family, checkpoint: Path) -> tuple[torch.nn.Module, dict]:
    """Through transformers' own loader, which shows that the names on disk are the hub's."""
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    if family.is_multimodal:
        options["config"] = _config(family)
    model_class = getattr(transformers, family.model_class)
    model, outcome = model_class.from_pretrained(
        checkpoint, output_loading_info=True, **options
    )
    return _in_f32(model), outcome


@torch.no_grad()
def logits_at_once(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """Logits of all tokens in one pass without a cache, [tokens, vocab]."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()


@torch.no_grad()
def generate(
    model: torch.nn.Module, prompt: list[int], steps: int
) -> tuple[list[int], torch.Tensor, object]:
    """Prefill and greedy steps: all tokens, the logits after each, and the cache."""
    out = model(input_ids=torch.tensor([prompt]), use_cache=True)
    tokens, logits, cache = list(prompt), [out.logits[0].float()], out.past_key_values
    for _ in range(steps):
        tokens.append(int(logits[-1][-1].argmax()))
        out = model(
            input_ids=torch.tensor([tokens[-1:]]), past_key_values=cache, use_cache=True
        )
        logits.append(out.logits[0].float())
    return tokens, torch.cat(logits), cache


def mixer_types(model: torch.nn.Module) -> list[str]:
    """What kind of mixer every layer has."""
    return [getattr(layer, "block_type", None) or "full_attention" for layer in model.model.layers]


class Tap:
    """Notes what flows through a model: `out` holds the last pass. Use it in a with block.

    `embed`, `layers.i.{mixer_out, mlp_out, out, router_logits, router_idx, router_w}` and
    `final_norm`, all [tokens, ...].
    """

    def __init__(self, model: torch.nn.Module):
        self.out: dict[str, torch.Tensor] = {}
        self._handles = []
        self._layer_count = len(model.model.layers)
        for index, layer in enumerate(model.model.layers):
            name = f"layers.{index}."
            mixer = getattr(layer, "linear_attn", None) or layer.self_attn
            self._keep_output(layer, name + "out")
            self._keep_output(mixer, name + "mixer_out")
            self._keep_output(layer.mlp, name + "mlp_out")
            self._keep_routes(layer.mlp, name)
        self._keep_output(model.model.embed_tokens, "embed")
        self._keep_output(model.model.norm, "final_norm")

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        for handle in self._handles:
            handle.remove()

    def router_gap(self) -> torch.Tensor:
        """Per token the smallest difference, over layers, between the router logits of the last
        chosen and the first rejected expert."""
        gaps = []
        for index in range(self._layer_count):
            top_k = self.out[f"layers.{index}.router_idx"].shape[1]
            logits = self.out[f"layers.{index}.router_logits"].sort(-1, descending=True)[0]
            gaps.append(logits[:, top_k - 1] - logits[:, top_k])
        return torch.stack(gaps).min(0)[0]

    def _keep_output(self, module: torch.nn.Module, name: str) -> None:
        def hook(_module, _arguments, out):
            out = out[0] if isinstance(out, tuple) else out
            self.out[name] = out.detach().reshape(-1, out.shape[-1]).float().clone()

        self._handles.append(module.register_forward_hook(hook))

    def _keep_routes(self, mlp: torch.nn.Module, name: str) -> None:
        def before_experts(_module, arguments, options):
            _, index, weight = [*arguments, *options.values()][:3]
            self.out[name + "router_idx"] = index.detach().to(torch.int32).clone()
            self.out[name + "router_w"] = weight.detach().float().clone()

        def after_router(_module, _arguments, out):
            self.out[name + "router_logits"] = out[0].detach().float().clone()

        self._handles.append(
            mlp.experts.register_forward_pre_hook(before_experts, with_kwargs=True)
        )
        self._handles.append(mlp.gate.register_forward_hook(after_router))
