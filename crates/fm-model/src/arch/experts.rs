//! Where the routed experts of a layer lie: fused, stacked, one by one, or in a container.

use fm_format::{
    quant::{FormatKind, QuantFormat, by_kind},
    record::{
        Extent, LayerRecords, MatrixRole, MatrixShape, Piece, Place, PlanarPart, Record,
        RecordLayout, ScaleSource,
    },
    source::{Dtype, Tensor},
};

use crate::{
    error::LoadError,
    weights::{Weights, plain_matrix_format},
};

/// Dimensions of a layer's routed experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertDims {
    pub(super) experts: usize,
    pub(super) hidden: usize,
    pub(super) ffn: usize,
}

impl ExpertDims {
    fn shape(&self, role: MatrixRole, format: &'static QuantFormat) -> MatrixShape {
        let (rows, cols) = match role {
            MatrixRole::Gate | MatrixRole::Up => (self.ffn, self.hidden),
            MatrixRole::Down => (self.hidden, self.ffn),
        };
        MatrixShape { rows, cols, format }
    }

    /// Whether records from a container are experts of these dimensions, in whatever formats.
    fn fit(&self, found: &LayerRecords) -> bool {
        let fits = |(role, _): (MatrixRole, _)| {
            let shape = found.layout.shape(role);
            shape == self.shape(role, shape.format)
        };
        found.records.len() == self.experts && ROLES.into_iter().all(fits)
    }
}

const ROLES: [(MatrixRole, &str); 3] =
    [(MatrixRole::Gate, "gate_proj"), (MatrixRole::Up, "up_proj"), (MatrixRole::Down, "down_proj")];

/// What some families call the projections of an expert that has tensors of its own.
const NUMBERED_ROLES: [(MatrixRole, &str); 3] =
    [(MatrixRole::Gate, "w1"), (MatrixRole::Up, "w3"), (MatrixRole::Down, "w2")];

/// Finds the experts of a layer, whose feed-forward network is called `mlp`.
pub(super) fn layer_records(
    weights: &Weights<'_>,
    mlp: &str,
    layer: usize,
    dims: ExpertDims,
) -> Result<LayerRecords, LoadError> {
    if let Some(layers) = &weights.checkpoint.records {
        let records = layers.get(layer).and_then(Option::as_ref);
        return records
            .filter(|records| dims.fit(records))
            .cloned()
            .ok_or_else(|| LoadError::Container { layer, dir: weights.checkpoint.path.clone() });
    }
    if weights.has(&format!("{mlp}.experts.gate_up_proj_blocks")) {
        return in_turns(weights, mlp, dims);
    }
    if weights.has(&format!("{mlp}.experts.gate_up_proj")) {
        return fused(weights, mlp, dims);
    }
    for module in ["switch_mlp", "experts"] {
        if weights.has(&format!("{mlp}.{module}.gate_proj.weight")) {
            return stacked(weights, &format!("{mlp}.{module}"), dims);
        }
    }
    separate(weights, mlp, dims)
}

/// The `index`-th of `count` equal slices of a tensor.
fn slice(tensor: &Tensor, index: usize, count: usize) -> Extent {
    let bytes = tensor.extent.bytes / count as u64;
    Extent { offset: tensor.extent.offset + index as u64 * bytes, bytes, ..tensor.extent }
}

/// `experts.gate_up_proj [E, 2I, H]` (gate first) and `experts.down_proj [E, H, I]`.
fn fused(weights: &Weights<'_>, mlp: &str, dims: ExpertDims) -> Result<LayerRecords, LoadError> {
    let ExpertDims { experts, hidden, ffn } = dims;
    let gate_up =
        weights.shaped(&format!("{mlp}.experts.gate_up_proj"), &[experts, 2 * ffn, hidden])?;
    let down = weights.shaped(&format!("{mlp}.experts.down_proj"), &[experts, hidden, ffn])?;
    let (upper, lower) = (plain_matrix_format(gate_up)?, plain_matrix_format(down)?);
    let layout = RecordLayout {
        gate: dims.shape(MatrixRole::Gate, upper),
        up: dims.shape(MatrixRole::Up, upper),
        down: dims.shape(MatrixRole::Down, lower),
    };
    let copy = |extent, role| Piece { extent, place: Place::Copy { at: layout.offset(role) } };
    let record = |expert| Record {
        pieces: vec![
            copy(slice(gate_up, expert, experts), MatrixRole::Gate),
            copy(slice(down, expert, experts), MatrixRole::Down),
        ],
        checksums: None,
    };
    Ok(LayerRecords { layout, records: (0..experts).map(record).collect() })
}

/// `experts.gate_up_proj_{blocks,scales}`, rows of gate and up in turns, and
/// `experts.down_proj_{blocks,scales}`, all in mxfp4.
fn in_turns(weights: &Weights<'_>, mlp: &str, dims: ExpertDims) -> Result<LayerRecords, LoadError> {
    let ExpertDims { experts, hidden, ffn } = dims;
    let format = by_kind(FormatKind::Mxfp4).expect("mxfp4 has a row");
    let (source, role) = (ScaleSource::Byte, MatrixRole::Down);
    let parts = |projection: &str, rows: usize, cols: usize| {
        mxfp4_parts(weights, &format!("{mlp}.experts.{projection}"), [experts, rows], cols)
    };
    let gate_up = parts("gate_up_proj", 2 * ffn, hidden)?;
    let gate_up = gate_up.map(|(part, tensor)| (tensor, Place::InTurns { part, source }));
    let down = parts("down_proj", hidden, ffn)?;
    let down = down.map(|(part, tensor)| (tensor, Place::Interleave { role, part, source }));
    let record = |expert| {
        let piece = |(tensor, place)| Piece { extent: slice(tensor, expert, experts), place };
        Record { pieces: gate_up.into_iter().chain(down).map(piece).collect(), checksums: None }
    };
    let layout = RecordLayout {
        gate: dims.shape(MatrixRole::Gate, format),
        up: dims.shape(MatrixRole::Up, format),
        down: dims.shape(MatrixRole::Down, format),
    };
    Ok(LayerRecords { layout, records: (0..experts).map(record).collect() })
}

/// `_blocks`, 32 codes in the 16 bytes of each, and `_scales`.
fn mxfp4_parts<'a>(
    weights: &Weights<'a>,
    module: &str,
    [experts, rows]: [usize; 2],
    cols: usize,
) -> Result<[(PlanarPart, &'a Tensor); 2], LoadError> {
    let groups = cols / 32;
    if !cols.is_multiple_of(32) {
        let module = module.to_owned();
        return Err(LoadError::Packing { module, packed: groups * 4, groups, cols });
    }
    let tensor = |suffix: &str, shape: &[usize]| {
        let tensor = weights.shaped(&format!("{module}_{suffix}"), shape)?;
        if tensor.dtype != Dtype::Unsigned(1) {
            let (tensor, found) = (tensor.name.clone(), tensor.dtype);
            return Err(LoadError::Dtype { tensor, expected: "U8", found });
        }
        Ok(tensor)
    };
    Ok([
        (PlanarPart::Codes, tensor("blocks", &[experts, rows, groups, 16])?),
        (PlanarPart::Scales, tensor("scales", &[experts, rows, groups])?),
    ])
}

/// `{gate,up,down}_proj` of a module, each stacked over experts, each plain or in parts.
fn stacked(
    weights: &Weights<'_>,
    experts: &str,
    dims: ExpertDims,
) -> Result<LayerRecords, LoadError> {
    let mut records = vec![Record { pieces: Vec::new(), checksums: None }; dims.experts];
    let mut formats = Vec::with_capacity(ROLES.len());
    let mut plain = Vec::new();
    for (role, projection) in ROLES {
        let module = format!("{experts}.{projection}");
        if weights.has(&format!("{module}.scales")) {
            let shape = dims.shape(role, fm_format::quant::float_format(FLOAT));
            let packing = weights.packing(&module, &[dims.experts, shape.rows], shape.cols)?;
            let source = packing.element;
            formats.push(packing.format);
            for (expert, record) in records.iter_mut().enumerate() {
                record.pieces.extend(packing.parts().map(|(part, tensor)| Piece {
                    extent: slice(tensor, expert, dims.experts),
                    place: Place::Interleave { role, part, source },
                }));
            }
        } else {
            let shape = dims.shape(role, fm_format::quant::float_format(FLOAT));
            let expected = [dims.experts, shape.rows, shape.cols];
            let tensor = weights.shaped(&format!("{module}.weight"), &expected)?;
            formats.push(plain_matrix_format(tensor)?);
            plain.push((role, tensor));
        }
    }
    let layout = RecordLayout {
        gate: dims.shape(MatrixRole::Gate, formats[0]),
        up: dims.shape(MatrixRole::Up, formats[1]),
        down: dims.shape(MatrixRole::Down, formats[2]),
    };
    for (role, tensor) in plain {
        for (expert, record) in records.iter_mut().enumerate() {
            let extent = slice(tensor, expert, dims.experts);
            record.pieces.push(Piece { extent, place: Place::Copy { at: layout.offset(role) } });
        }
    }
    Ok(LayerRecords { layout, records })
}

/// Any float kind: rows and columns of a shape do not depend on it.
const FLOAT: fm_format::quant::FloatKind = fm_format::quant::FloatKind::F32;

/// `experts.{e}.{gate,up,down}_proj.weight`, all experts alike.
fn separate(weights: &Weights<'_>, mlp: &str, dims: ExpertDims) -> Result<LayerRecords, LoadError> {
    let numbered = weights.has(&format!("{mlp}.experts.0.w1.weight"));
    let roles = if numbered { NUMBERED_ROLES } else { ROLES };
    let mut layout: Option<RecordLayout> = None;
    let mut records = Vec::with_capacity(dims.experts);
    for expert in 0..dims.experts {
        let mut formats = Vec::with_capacity(ROLES.len());
        let mut found = Vec::with_capacity(ROLES.len());
        for (role, projection) in roles {
            let shape = dims.shape(role, fm_format::quant::float_format(FLOAT));
            let module = format!("{mlp}.experts.{expert}.{projection}");
            if let Some(packing) = weights.fp8(&module, &[shape.rows], shape.cols)? {
                let source = packing.element;
                let parts = packing.parts();
                found.extend(parts.map(|(part, tensor)| {
                    (tensor, role, Some(Place::Interleave { role, part, source }))
                }));
                formats.push(packing.format);
                continue;
            }
            let name = format!("{module}.weight");
            let tensor = weights.shaped(&name, &[shape.rows, shape.cols])?;
            formats.push(plain_matrix_format(tensor)?);
            found.push((tensor, role, None));
        }
        let own = RecordLayout {
            gate: dims.shape(MatrixRole::Gate, formats[0]),
            up: dims.shape(MatrixRole::Up, formats[1]),
            down: dims.shape(MatrixRole::Down, formats[2]),
        };
        let layout = *layout.get_or_insert(own);
        if own != layout {
            let (tensor, found) = (found[0].0.name.clone(), found[0].0.dtype);
            return Err(LoadError::Dtype { tensor, expected: "the dtype of expert 0", found });
        }
        let piece = |(tensor, role, place): (&Tensor, _, Option<Place>)| Piece {
            extent: tensor.extent,
            place: place.unwrap_or(Place::Copy { at: layout.offset(role) }),
        };
        records.push(Record { pieces: found.into_iter().map(piece).collect(), checksums: None });
    }
    let Some(layout) = layout else {
        return Err(LoadError::MissingTensor { tensor: format!("{mlp}.experts.0") });
    };
    Ok(LayerRecords { layout, records })
}
