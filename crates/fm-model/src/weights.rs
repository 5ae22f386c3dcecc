//! Named tensors: a family asks by name and shape, and gets where the bytes are and what they mean.
//!
//! Whatever was not asked for and is not skipped by name is an error in the end: nothing is ignored
//! silently.

use std::{borrow::Cow, cell::RefCell, collections::BTreeSet};

use fm_format::{
    quant::{FloatKind, FormatKind, QuantFormat, ScaleKind, by_kind, float_format, fp8::TILE},
    record::{Catalog, Extent, MatrixShape, PlanarPart, ScaleSource},
    source::{Checkpoint, Dtype, Tensor},
};
use serde_json::Value;

use crate::{
    arch::gguf,
    error::LoadError,
    spec::{
        MatrixRef, MatrixSource, MatrixTransform, Projection, TiedTensor, VectorRef,
        VectorTransform,
    },
};

mod quantization;

/// Ends of names of what old checkpoints keep though every reader computes it from the configuration.
const ROTARY_FREQUENCIES: &str = ".self_attn.rotary_emb.inv_freq";

/// A checkpoint's tensors, by name.
#[derive(Debug)]
pub(crate) struct Weights<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    /// What `config.json` says of packing, if it says anything.
    quantization: Option<&'a Value>,
    /// What the norm before a feed-forward half is called, if tensors have GGUF's names.
    gguf_ffn_norm: Option<&'static str>,
    used: RefCell<BTreeSet<&'a str>>,
    skipped: RefCell<BTreeSet<&'a str>>,
}

/// How a module is packed, and in which tensors.
pub(crate) struct Packing<'a> {
    pub(crate) format: &'static QuantFormat,
    pub(crate) element: ScaleSource,
    codes: &'a Tensor,
    scales: &'a Tensor,
    biases: Option<&'a Tensor>,
}

impl<'a> Packing<'a> {
    fn source(&self) -> MatrixSource {
        MatrixSource::Planar {
            codes: self.codes.extent,
            scales: self.scales.extent,
            biases: self.biases.map(|biases| biases.extent),
            element: self.element,
        }
    }

    /// The tensors with what they hold.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (PlanarPart, &'a Tensor)> + use<'a> {
        let parts = [(PlanarPart::Codes, self.codes), (PlanarPart::Scales, self.scales)];
        parts.into_iter().chain(self.biases.map(|biases| (PlanarPart::Biases, biases)))
    }
}

/// Whether something is added to what a matrix gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bias {
    /// Nothing.
    None,
    /// A vector, which has to be there.
    Added,
}

impl<'a> Weights<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint) -> Result<Self, LoadError> {
        let quantization = quantization::in_force(&checkpoint.config)?;
        let gguf_ffn_norm = checkpoint.metadata.as_ref().map(gguf::ffn_norm).transpose()?;
        let (used, skipped) = Default::default();
        let weights = Self { checkpoint, quantization, gguf_ffn_norm, used, skipped };
        if let Some(metadata) = &checkpoint.metadata {
            for layer in gguf::layers_ahead(metadata)? {
                gguf::check_layer_ahead(checkpoint, metadata, layer)?;
                weights.skip(&format!("model.layers.{layer}."));
            }
        }
        Ok(weights)
    }

    /// What the checkpoint calls a tensor; nothing if its publisher has no name for it.
    fn published_name<'n>(&self, name: &'n str) -> Option<Cow<'n, str>> {
        match self.gguf_ffn_norm {
            None => Some(Cow::Borrowed(name)),
            Some(ffn_norm) => gguf::names::tensor_name(name, ffn_norm).map(Cow::Owned),
        }
    }

    fn find(&self, name: &str) -> Option<(&'a String, &'a Tensor)> {
        self.checkpoint.tensors.get_key_value(&*self.published_name(name)?)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// A tensor by name; from now on it counts as used.
    pub(crate) fn tensor(&self, name: &str) -> Result<&'a Tensor, LoadError> {
        let Some((key, tensor)) = self.find(name) else {
            let tensor = self.published_name(name).unwrap_or(Cow::Borrowed(name)).into_owned();
            return Err(LoadError::MissingTensor { tensor });
        };
        self.used.borrow_mut().insert(key);
        Ok(tensor)
    }

    /// A tensor of exactly this shape.
    pub(crate) fn shaped(&self, name: &str, expected: &[usize]) -> Result<&'a Tensor, LoadError> {
        let tensor = self.tensor(name)?;
        // GGUF files leave out or write dimensions of one as their converter pleased.
        let same = match self.gguf_ffn_norm {
            Some(_) => without_ones(&tensor.shape) == without_ones(expected),
            None => tensor.shape == expected,
        };
        if !same {
            return Err(LoadError::Shape {
                tensor: tensor.name.clone(),
                expected: expected.to_vec(),
                found: tensor.shape.clone(),
            });
        }
        Ok(tensor)
    }

    /// The weight matrix of a module, `[rows, cols]`, packed in whatever format it is.
    pub(crate) fn matrix(
        &self,
        module: &str,
        rows: usize,
        cols: usize,
    ) -> Result<MatrixRef, LoadError> {
        self.stacked_matrix(module, &[rows], cols)
    }

    /// As [`Weights::matrix`] for matrices that are stacked: `[.., rows, cols]`, here one below the
    /// other.
    pub(crate) fn stacked_matrix(
        &self,
        module: &str,
        leading: &[usize],
        cols: usize,
    ) -> Result<MatrixRef, LoadError> {
        let rows = leading.iter().product();
        let weight = format!("{module}.weight");
        let (format, source) = if self.has(&format!("{module}.scales")) {
            let packing = self.packing(module, leading, cols)?;
            (packing.format, packing.source())
        } else if let Some(packing) = self.fp8(module, leading, cols)? {
            (packing.format, packing.source())
        } else {
            let tensor = self.shaped(&weight, &[leading, &[cols]].concat())?;
            (plain_matrix_format(tensor)?, MatrixSource::Plain(tensor.extent))
        };
        let shape = MatrixShape { rows, cols, format };
        let all = std::iter::once(0..rows).collect();
        let (name, transform) = (module.to_owned(), MatrixTransform::Plain);
        Ok(MatrixRef { name, shape, source, source_rows: rows, rows: all, transform })
    }

    /// A matrix, and its bias. Where there is none to be, a tensor of that name belongs to nothing.
    pub(crate) fn projection(
        &self,
        module: &str,
        (rows, cols): (usize, usize),
        bias: Bias,
    ) -> Result<Projection, LoadError> {
        let weight = self.matrix(module, rows, cols)?;
        let bias = match bias {
            Bias::None => None,
            Bias::Added => {
                Some(self.vector(&format!("{module}.bias"), &[rows], VectorTransform::Plain)?)
            }
        };
        Ok(Projection { weight, bias })
    }

    /// A small float tensor.
    pub(crate) fn vector(
        &self,
        name: &str,
        shape: &[usize],
        transform: VectorTransform,
    ) -> Result<VectorRef, LoadError> {
        let tensor = self.shaped(name, shape)?;
        if !matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
            return Err(LoadError::Dtype {
                tensor: tensor.name.clone(),
                expected: "F32, F16 or BF16",
                found: tensor.dtype,
            });
        }
        let len: usize = shape.iter().product();
        let (extent, dtype) = (tensor.extent, tensor.dtype);
        let all = std::iter::once(0..len).collect();
        Ok(VectorRef { name: tensor.name.clone(), extent, dtype, len, transform, rows: all })
    }

    /// Format of a module with scales, from its shapes. `leading` are the dimensions before the
    /// columns: rows, or experts and rows.
    pub(crate) fn packing(
        &self,
        module: &str,
        leading: &[usize],
        cols: usize,
    ) -> Result<Packing<'a>, LoadError> {
        let codes = self.tensor(&format!("{module}.weight"))?;
        let scales = self.tensor(&format!("{module}.scales"))?;
        let packed = codes.shape.last().copied().unwrap_or(0);
        let groups = scales.shape.last().copied().unwrap_or(0);
        let with = |last: usize| [leading, &[last]].concat();
        self.shaped(&codes.name, &with(packed))?;
        self.shaped(&scales.name, &with(groups))?;
        if codes.dtype != Dtype::Unsigned(4) {
            let (tensor, found) = (codes.name.clone(), codes.dtype);
            return Err(LoadError::Dtype { tensor, expected: "U32", found });
        }
        let unknown = || LoadError::Packing { module: module.to_owned(), packed, groups, cols };
        if scales.dtype == Dtype::Unsigned(1) {
            let (mode, kind, bits, group) =
                small_float_mode(packed, groups, cols).ok_or_else(unknown)?;
            self.check_mode(module, mode)?;
            self.check_against_config(module, (bits, group))?;
            let format = by_kind(kind).ok_or_else(unknown)?;
            let element = ScaleSource::Byte;
            return Ok(Packing { format, element, codes, scales, biases: None });
        }
        self.check_mode(module, "affine")?;
        let biases = self.shaped(&format!("{module}.biases"), &with(groups))?;
        let (scale, element) = scale_kinds(scales)?;
        scale_kinds(biases)?;
        if biases.dtype != scales.dtype {
            let (tensor, found) = (biases.name.clone(), biases.dtype);
            return Err(LoadError::Dtype { tensor, expected: "the dtype of its scales", found });
        }
        let (bits, group) = affine_shape(packed, groups, cols).ok_or_else(unknown)?;
        let kind = FormatKind::Affine { bits, group, scale };
        let format = by_kind(kind).ok_or_else(unknown)?;
        self.check_against_config(module, (bits.into(), group.into()))?;
        Ok(Packing { format, element, codes, scales, biases: Some(biases) })
    }

    /// Packing of a module in `fp8`, whose scales belong to tiles; `None` if it is something else.
    pub(crate) fn fp8(
        &self,
        module: &str,
        leading: &[usize],
        cols: usize,
    ) -> Result<Option<Packing<'a>>, LoadError> {
        let scales = format!("{module}.weight_scale_inv");
        if !self.has(&scales) {
            return Ok(None);
        }
        let codes = self.shaped(&format!("{module}.weight"), &[leading, &[cols]].concat())?;
        if codes.dtype != Dtype::F8E4m3 {
            let (tensor, found) = (codes.name.clone(), codes.dtype);
            return Err(LoadError::Dtype { tensor, expected: "F8_E4M3", found });
        }
        let tiles = |len: usize| len.div_ceil(TILE);
        let mut across = leading.to_vec();
        if let Some(rows) = across.last_mut() {
            *rows = tiles(*rows);
        }
        let scales = self.shaped(&scales, &[across.as_slice(), &[tiles(cols)]].concat())?;
        self.check_tile(module)?;
        let (_, element) = scale_kinds(scales)?;
        let group = [TILE, 64, 32].into_iter().find(|group| cols.is_multiple_of(*group));
        let format = group.and_then(|group| by_kind(FormatKind::Fp8 { group: group as u8 }));
        let format =
            format.ok_or_else(|| LoadError::Fp8Columns { module: module.to_owned(), cols })?;
        Ok(Some(Packing { format, element, codes, scales, biases: None }))
    }

    /// Scales of other tiles than the shapes allow for would be silently wrong.
    fn check_tile(&self, module: &str) -> Result<(), LoadError> {
        let size = self.quantization.and_then(|all| all.get("weight_block_size"));
        let tile = serde_json::json!([TILE, TILE]);
        match size {
            Some(size) if *size != tile => {
                Err(LoadError::Fp8Tile { module: module.to_owned(), found: size.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// What the configuration says of a module: its own entry, or the common one.
    fn configured(&self, module: &str, field: &str) -> Option<&'a Value> {
        let quantization = self.quantization?;
        let own = quantization.get(module).and_then(|own| own.get(field));
        own.or_else(|| quantization.get(field))
    }

    /// An entry of a module's own that names no mode means the affine one, whatever the mode of all
    /// others is.
    fn check_mode(&self, module: &str, found: &'static str) -> Result<(), LoadError> {
        let own = self.quantization.and_then(|all| all.get(module));
        let mode = own.or(self.quantization).and_then(|entry| entry.get("mode"));
        let mode = mode.and_then(Value::as_str).unwrap_or("affine");
        if mode == found {
            return Ok(());
        }
        let (module, mode) = (module.to_owned(), mode.to_owned());
        Err(LoadError::QuantizationMode { module, mode, found })
    }

    fn check_against_config(
        &self,
        module: &str,
        (found_bits, found_group): (u64, u64),
    ) -> Result<(), LoadError> {
        let number = |field| self.configured(module, field).and_then(Value::as_u64);
        let bits = number("bits").unwrap_or(found_bits);
        let group = number("group_size").unwrap_or(found_group);
        if (bits, group) != (found_bits, found_group) {
            let module = module.to_owned();
            return Err(LoadError::Quantization { module, found_bits, found_group, bits, group });
        }
        Ok(())
    }

    /// The tensors of a module that has to be a copy of another one, each beside its original. Their
    /// bytes are for whoever reads.
    pub(crate) fn copies(&self, module: &str, of: &str) -> Result<Vec<TiedTensor>, LoadError> {
        let Some(prefix) = self.published_name(&format!("{module}.")).map(Cow::into_owned) else {
            return Ok(Vec::new());
        };
        let all = self.checkpoint.tensors.values();
        let copies = all.filter(|tensor| tensor.name.starts_with(&prefix)).map(|copy| {
            let original = self.find(&format!("{of}.{}", &copy.name[prefix.len()..]));
            let same = original.filter(|(_, original)| {
                (original.dtype, &original.shape) == (copy.dtype, &copy.shape)
            });
            let (_, original) =
                same.ok_or_else(|| LoadError::TiedHead { tensor: copy.name.clone() })?;
            Ok(TiedTensor { name: copy.name.clone(), head: copy.extent, embed: original.extent })
        });
        copies.collect()
    }

    /// Every tensor whose name begins like this is none of ours.
    pub(crate) fn skip(&self, prefix: &str) {
        let Some(prefix) = self.published_name(prefix) else { return };
        let names = self.checkpoint.tensors_of(&prefix).map(|(name, _)| name.as_str());
        self.skipped.borrow_mut().extend(names);
    }

    /// The check at the end: every tensor was asked for or skipped, and every record of a
    /// container has a layer. Returns the used tensors that no record of `catalog` lies in.
    pub(crate) fn finish(
        self,
        model_type: &'static str,
        catalog: &Catalog,
    ) -> Result<Vec<String>, LoadError> {
        let (used, skipped) = (self.used.borrow(), self.skipped.borrow());
        let known = |name: &str| {
            used.contains(name) || skipped.contains(name) || name.ends_with(ROTARY_FREQUENCIES)
        };
        if let Some(name) = self.checkpoint.tensors.keys().find(|name| !known(name)) {
            return Err(LoadError::UnknownTensor { tensor: name.clone(), model_type });
        }
        if let Some(records) = &self.checkpoint.records {
            let layers = records.len().max(catalog.layers.len());
            let differs = |layer: &usize| records.get(*layer) != catalog.layers.get(*layer);
            if let Some(layer) = (0..layers).find(differs) {
                return Err(LoadError::Container { layer, dir: self.checkpoint.path.clone() });
            }
        }
        let records = catalog.layers.iter().flatten().flat_map(|layer| &layer.records);
        let pieces = records.flat_map(|record| &record.pieces);
        let mut starts: Vec<_> =
            pieces.map(|piece| (piece.extent.file, piece.extent.offset)).collect();
        starts.sort_unstable();
        let in_trunk = |name: &&&str| {
            let Extent { file, offset, bytes } = self.checkpoint.tensors[**name].extent;
            let next = starts.partition_point(|start| *start < (file, offset));
            starts.get(next).is_none_or(|start| *start >= (file, offset + bytes))
        };
        Ok(used.iter().filter(in_trunk).map(|name| (*name).to_owned()).collect())
    }
}

/// A shape without leading dimensions of one.
fn without_ones(shape: &[usize]) -> &[usize] {
    let ones = shape.iter().take_while(|dim| **dim == 1).count();
    &shape[ones.min(shape.len().saturating_sub(1))..]
}

/// Format of a matrix that is one tensor: plain floats, or blocks.
pub(crate) fn plain_matrix_format(tensor: &Tensor) -> Result<&'static QuantFormat, LoadError> {
    let kind = match tensor.dtype {
        Dtype::F32 => FloatKind::F32,
        Dtype::F16 => FloatKind::F16,
        Dtype::Bf16 => FloatKind::Bf16,
        Dtype::Packed(format) => return Ok(format),
        found => {
            return Err(LoadError::Dtype {
                tensor: tensor.name.clone(),
                expected: "F32, F16, BF16 or a quant format",
                found,
            });
        }
    };
    Ok(float_format(kind))
}

fn scale_kinds(tensor: &Tensor) -> Result<(ScaleKind, ScaleSource), LoadError> {
    match tensor.dtype {
        Dtype::Bf16 => Ok((ScaleKind::Bf16, ScaleSource::Bf16)),
        Dtype::F16 => Ok((ScaleKind::F32, ScaleSource::F16)),
        Dtype::F32 => Ok((ScaleKind::F32, ScaleSource::F32)),
        found => Err(LoadError::Dtype {
            tensor: tensor.name.clone(),
            expected: "BF16, F16 or F32",
            found,
        }),
    }
}

/// Mode, kind, bits and group of MLX's small floats; `None` if the shapes belong to none of them.
fn small_float_mode(
    packed: usize,
    groups: usize,
    cols: usize,
) -> Option<(&'static str, FormatKind, u64, u64)> {
    let modes = [
        ("mxfp4", FormatKind::Mxfp4, 4, 32),
        ("nvfp4", FormatKind::Nvfp4, 4, 16),
        ("mxfp8", FormatKind::Mxfp8, 8, 32),
    ];
    modes.into_iter().find(|(_, _, bits, group)| {
        let words =
            packed.checked_mul(32).map(|bits| bits as u64) == (cols as u64).checked_mul(*bits);
        words && groups.checked_mul(*group as usize) == Some(cols)
    })
}

/// `bits = 32 · packed / cols`, `group = cols / groups`; `None` if they are no whole numbers.
fn affine_shape(packed: usize, groups: usize, cols: usize) -> Option<(u8, u8)> {
    let packed_bits = packed.checked_mul(32)?;
    if cols == 0 || groups == 0 || !packed_bits.is_multiple_of(cols) || !cols.is_multiple_of(groups)
    {
        return None;
    }
    Some((u8::try_from(packed_bits / cols).ok()?, u8::try_from(cols / groups).ok()?))
}
