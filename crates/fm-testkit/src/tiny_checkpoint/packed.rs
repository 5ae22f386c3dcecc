//! Packed files of the first flash-moe, as its scripts made them of an MLX checkpoint.

use std::{fs, path::Path};

use serde_json::{Map, Value, json};

use super::{
    Layout, MlxLayout, TinyModel, config_json,
    disk::{self, DiskTensor},
    layout,
    weights::noise_weights,
};

const PARTS: [&str; 9] = [
    "gate_proj.weight",
    "gate_proj.scales",
    "gate_proj.biases",
    "up_proj.weight",
    "up_proj.scales",
    "up_proj.biases",
    "down_proj.weight",
    "down_proj.scales",
    "down_proj.biases",
];

/// What the scripts copied of the configuration.
const KEYS: [&str; 20] = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "full_attention_interval",
    "linear_num_value_heads",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "partial_rotary_factor",
    "rope_theta",
    "layer_types",
];

impl TinyModel {
    /// Writes the MLX checkpoint of this layout as packed files: `model_weights.{bin,json}`, the
    /// experts in `dir/experts` (the scripts say `packed_experts` or `packed_experts_2bit`), and
    /// beside them the configuration files, which the scripts do not copy.
    ///
    /// # Panics
    /// If an expert is not packed in nine parts, or `dir` cannot be written.
    pub fn write_packed(&self, dir: &Path, layout: &MlxLayout, experts: &str) {
        self.write_packed_shifted(dir, layout, experts, 0);
    }

    /// The same with every expert cut out of its file `shift` bytes too early, as an index does that
    /// knows nothing of a header of this length.
    ///
    /// # Panics
    /// As [`TinyModel::write_packed`].
    pub fn write_packed_shifted(
        &self,
        dir: &Path,
        layout: &MlxLayout,
        experts: &str,
        shift: usize,
    ) {
        self.check();
        fs::create_dir_all(dir.join(experts)).expect("a directory can be created");
        let (tensors, packing) = layout::mlx(self, layout, &noise_weights(self));
        let config = config_json::config(self, &Layout::Mlx(layout.clone()), Some(&packing));
        disk::write_json(&dir.join("config.json"), &config);
        disk::write_json(&dir.join("generation_config.json"), &config_json::generation_config());
        let (of_experts, mut trunk): (Vec<_>, Vec<_>) =
            tensors.into_iter().partition(|tensor| tensor.name.contains(".switch_mlp."));
        trunk.sort_by(|a, b| a.name.cmp(&b.name));
        write_trunk(dir, &trunk, &config);
        self.write_experts(&dir.join(experts), &of_experts, shift);
    }

    fn write_experts(&self, dir: &Path, tensors: &[DiskTensor], shift: usize) {
        // The file they are cut out of: a header, and the tensors by name.
        let mut shard = format!("{:shift$}", "{\"language_model.model.layers.0\":{").into_bytes();
        shard.truncate(shift);
        let mut ascending: Vec<&DiskTensor> = tensors.iter().collect();
        ascending.sort_by(|a, b| a.name.cmp(&b.name));
        let mut starts = Map::new();
        for tensor in ascending {
            starts.insert(tensor.name.clone(), json!(shard.len()));
            shard.extend(tensor.data());
        }
        for layer in (0..self.layers).filter(|layer| self.routes(*layer)) {
            let mut file = Vec::new();
            let mut components = Vec::new();
            for expert in 0..self.experts {
                for name in PARTS {
                    let end = format!(".layers.{layer}.mlp.switch_mlp.{name}");
                    let tensor = tensors.iter().find(|tensor| tensor.name.ends_with(&end));
                    let tensor = tensor.expect("an expert has nine parts");
                    let start = starts[&tensor.name].as_u64().expect("an offset") as usize;
                    let part = tensor.part(expert, self.experts);
                    if expert == 0 {
                        let mut component = tensor.header();
                        component["name"] = json!(name);
                        component["offset"] = json!(file.len());
                        component["size"] = json!(part.len());
                        components.push(component);
                    }
                    let from = start + part.start - shift;
                    file.extend(&shard[from..from + part.len()]);
                }
            }
            let layout = json!({
                "expert_size": file.len() / self.experts,
                "num_layers": self.layers,
                "num_experts": self.experts,
                "components": components,
            });
            disk::write_json(&dir.join("layout.json"), &layout);
            fs::write(dir.join(format!("layer_{layer:02}.bin")), file).expect("can be written");
        }
    }
}

/// The `tokenizer.bin` of a byte-level `tokenizer.json`.
///
/// # Panics
/// If it is none.
pub fn tokenizer_bin(tokenizer: &Value) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u16).to_le_bytes(), text.as_bytes()].concat();
    let token =
        |id: u64, content: &str| [(id as u32).to_le_bytes().to_vec(), text(content)].concat();
    let model = &tokenizer["model"];
    let vocab = model["vocab"].as_object().expect("a vocabulary");
    let mut tokens: Vec<(u64, &str)> =
        vocab.iter().map(|(text, id)| (id.as_u64().expect("an id"), text.as_str())).collect();
    tokens.sort_unstable();
    let merges = model["merges"].as_array().expect("merges");
    let added = tokenizer["added_tokens"].as_array().expect("added tokens");
    let mut file = b"BPET".to_vec();
    let counts = [1, tokens.len(), merges.len(), added.len()];
    file.extend(counts.iter().flat_map(|count| (*count as u32).to_le_bytes()));
    file.extend(tokens.into_iter().flat_map(|(id, content)| token(id, content)));
    for merge in merges {
        let both = match merge {
            Value::String(merge) => merge.split_once(' '),
            merge => merge[0].as_str().zip(merge[1].as_str()),
        };
        let (left, right) = both.expect("two tokens");
        file.extend([text(left), text(right)].concat());
    }
    for entry in added {
        let (id, content) = (entry["id"].as_u64(), entry["content"].as_str());
        file.extend(token(id.expect("an id"), content.expect("a text")));
    }
    file
}

fn write_trunk(dir: &Path, tensors: &[DiskTensor], config: &Value) {
    let (mut file, mut entries) = (Vec::new(), Map::new());
    for tensor in tensors {
        file.resize(file.len().next_multiple_of(64), 0);
        let mut entry = tensor.header();
        entry["offset"] = json!(file.len());
        entry["size"] = json!(tensor.data().len());
        let name = tensor.name.strip_prefix("language_model.").unwrap_or(&tensor.name);
        entries.insert(name.to_owned(), entry);
        file.extend(tensor.data());
    }
    let text = config.get("text_config").unwrap_or(config);
    // Where a number has moved since, the scripts found only their own.
    let moved = |key: &str| text.get("rope_parameters").and_then(|rope| rope.get(key));
    let copied = KEYS.into_iter().filter_map(|key| {
        let value = text.get(key).or_else(|| moved(key))?;
        Some((key.to_owned(), value.clone()))
    });
    let index = json!({
        "model": "/models/tiny",
        "num_tensors": tensors.len(),
        "tensors": entries,
        "config": copied.collect::<Map<_, _>>(),
    });
    fs::write(dir.join("model_weights.bin"), file).expect("can be written");
    disk::write_json(&dir.join("model_weights.json"), &index);
}
