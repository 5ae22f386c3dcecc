//! What can be wrong with packed files.

/// Why packed files cannot be read. The file is named by the error around it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackedError {
    /// The trunk alone.
    #[error("there is neither packed_experts nor packed_experts_2bit beside the trunk")]
    NoExperts,

    /// Experts that would have to be unpacked for every token.
    #[error(
        "packed_experts_lz4 is compressed and cannot be read; make packed_experts or \
         packed_experts_2bit, or take the checkpoint that it was made of"
    )]
    Compressed,

    /// Neither `config.json` nor the index says it.
    #[error("the configuration has no `{key}`; put the model's config.json into the directory")]
    MissingKey {
        /// The key.
        key: &'static str,
    },

    /// A number that is none, or absurd.
    #[error("the configuration's `{key}` is {found}")]
    Key {
        /// The key.
        key: &'static str,
        /// What it says.
        found: String,
    },

    /// A layer file whose length fits no format.
    #[error(
        "layer {layer} has {found} bytes, which is no length of {experts} experts in any format\
         {}", expected.map_or(String::new(), |bytes| format!("; in {format} they are {bytes}"))
    )]
    Length {
        /// The layer.
        layer: usize,
        /// Bytes of the file.
        found: u64,
        /// Bytes in the format that the directory is for, if that can be.
        expected: Option<u64>,
        /// Experts of the layer.
        experts: usize,
        /// The format that the directory is for.
        format: &'static str,
    },

    /// Experts for a layer that has none.
    #[error("the model has no experts in a layer {layer}, but there is a file for them")]
    ExtraLayer {
        /// The layer.
        layer: usize,
    },

    /// `layout.json` describes other experts than those that are there.
    #[error("`{field}` is {found}, but the files make it {expected}")]
    Layout {
        /// The field.
        field: String,
        /// What it says.
        found: String,
        /// What follows from configuration and lengths.
        expected: String,
    },

    /// Bytes that are no scales and biases.
    #[error(
        "layer {layer}, expert {expert}: {wrong} of {count} scales and biases of {projection} are \
         not such numbers; the experts were cut out of the wrong places (an index without the \
         length of the safetensors header does that) or never written; pack them again"
    )]
    Implausible {
        /// The layer.
        layer: usize,
        /// The expert.
        expert: usize,
        /// The matrix.
        projection: &'static str,
        /// Pairs that cannot be.
        wrong: usize,
        /// Pairs that were looked at.
        count: usize,
    },
}
