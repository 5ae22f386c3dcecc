//! A small checkpoint of noise: files, their catalog, and what every record must be.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use fm_format::{
    key::{ExpertIndex, ExpertKey, LayerIndex},
    quant,
    record::{
        Catalog, Extent, FileIndex, LayerRecords, MatrixRole, MatrixShape, PART_ALIGN, Piece,
        Place, PlanarPart, Record, RecordLayout, ScaleSource,
    },
};
use fm_store::{CHUNK_BYTES, PolicyKind, StoreOptions};

/// How the records of a layer lie on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Whole records, aligned, as in a container.
    Container,
    /// Gate, up and down somewhere, at odd offsets.
    Scattered,
    /// Gate, up and down somewhere, at block borders, backwards.
    Aligned,
    /// Gate and up in one tensor, down in another, at odd offsets.
    Fused,
    /// Gate, up and down somewhere, at odd offsets, and so long that they can be read in whole blocks.
    Long,
    /// Codes, scales and biases of affine matrices in nine tensors.
    Affine,
    /// Codes and scales in four tensors, rows of gate and up in turns.
    InTurns,
    /// The same back to back.
    Packed,
}

/// Files and truth.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) files: Vec<Vec<u8>>,
    pub(crate) truth: Arc<HashMap<ExpertKey, Vec<u8>>>,
}

/// Bytes that look like nothing, the same for the same seed.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// Shapes whose parts end off and on block borders, per layer.
fn layout(style: Style, layer: usize) -> RecordLayout {
    let name = match style {
        Style::Affine | Style::Packed => "affine4_g32",
        Style::InTurns => "mxfp4_seq",
        _ => "bf16",
    };
    let format = quant::by_name(name).expect("the format has a row");
    // Two sizes of records, so that there are two classes.
    let (ffn, hidden) = match style {
        Style::Long => (128, 520),
        _ if layer % 3 == 2 => (32, 96),
        _ => (32, 64),
    };
    RecordLayout {
        gate: MatrixShape { rows: ffn, cols: hidden, format },
        up: MatrixShape { rows: ffn, cols: hidden, format },
        down: MatrixShape { rows: hidden, cols: ffn, format },
    }
}

/// Extents of one record, relative to nothing: length, place, and whether it follows its
/// predecessor in the file.
fn parts(layout: &RecordLayout, style: Style) -> Vec<(usize, Place, bool)> {
    let copy = |role| (layout.shape(role).bytes(), Place::Copy { at: layout.offset(role) }, false);
    match style {
        Style::Container => vec![(layout.bytes(), Place::Copy { at: 0 }, false)],
        Style::Scattered => [MatrixRole::Down, MatrixRole::Gate, MatrixRole::Up].map(copy).to_vec(),
        Style::Aligned => [MatrixRole::Down, MatrixRole::Up, MatrixRole::Gate].map(copy).to_vec(),
        Style::Long => MatrixRole::ALL.map(copy).to_vec(),
        Style::Fused => {
            let mut parts = [MatrixRole::Gate, MatrixRole::Up, MatrixRole::Down].map(copy).to_vec();
            parts[1].2 = true;
            parts
        }
        Style::Affine | Style::Packed => {
            let roles = [MatrixRole::Gate, MatrixRole::Up, MatrixRole::Down];
            let affine = |role| {
                let shape = layout.shape(role);
                let blocks = shape.rows * shape.cols / shape.format.block_len;
                let part = |part, element: usize| {
                    let source = ScaleSource::Bf16;
                    let first = role == MatrixRole::Gate && part == PlanarPart::Codes;
                    let follows = style == Style::Packed && !first;
                    (blocks * element, Place::Interleave { role, part, source }, follows)
                };
                [
                    part(PlanarPart::Codes, 16),
                    part(PlanarPart::Scales, 2),
                    part(PlanarPart::Biases, 2),
                ]
            };
            roles.into_iter().flat_map(affine).collect()
        }
        Style::InTurns => {
            let blocks = layout.gate.rows * layout.gate.cols / layout.gate.format.block_len;
            let (source, role) = (ScaleSource::Byte, MatrixRole::Down);
            let both = |part, element: usize| {
                (2 * blocks * element, Place::InTurns { part, source }, false)
            };
            let down = |part, element: usize| {
                (blocks * element, Place::Interleave { role, part, source }, false)
            };
            vec![
                both(PlanarPart::Codes, 16),
                both(PlanarPart::Scales, 1),
                down(PlanarPart::Codes, 16),
                down(PlanarPart::Scales, 1),
            ]
        }
    }
}

impl Style {
    pub(crate) const ALL: [Self; 8] = [
        Self::Container,
        Self::Scattered,
        Self::Aligned,
        Self::Fused,
        Self::Long,
        Self::Affine,
        Self::InTurns,
        Self::Packed,
    ];
}

impl World {
    /// `layers` layers of `experts` experts, styles in turn, in three files; the last extent ends
    /// where its file does.
    pub(crate) fn new(styles: &[Style], layers: usize, experts: usize) -> Self {
        let mut noise = Noise::new(layers as u64 * 31 + experts as u64);
        let mut files = vec![noise.bytes(777), noise.bytes(1), noise.bytes(4097)];
        let mut catalog = Catalog {
            files: (0..files.len()).map(|file| PathBuf::from(format!("weights-{file}"))).collect(),
            layers: Vec::new(),
        };
        for layer in 0..layers {
            // A dense layer in between: layers are not all alike.
            if layer == 1 {
                catalog.layers.push(None);
            }
            let style = styles[layer % styles.len()];
            let layout = layout(style, layer);
            let records = (0..experts).map(|_| {
                let pieces = parts(&layout, style).into_iter();
                let mut file = 0;
                let pieces = pieces.map(|(bytes, place, follows)| {
                    if !follows {
                        file = noise.below(files.len());
                        let gap = noise.below(3000);
                        files[file].extend((0..gap).map(|at| at as u8));
                    }
                    if matches!(style, Style::Container | Style::Aligned) {
                        let aligned = files[file].len().next_multiple_of(PART_ALIGN);
                        files[file].resize(aligned, 0);
                    }
                    let extent = Extent {
                        file: FileIndex(file as u32),
                        offset: files[file].len() as u64,
                        bytes: bytes as u64,
                    };
                    files[file].extend(noise.bytes(bytes));
                    Piece { extent, place }
                });
                Record { pieces: pieces.collect(), checksums: None }
            });
            let records = records.collect();
            catalog.layers.push(Some(LayerRecords { layout, records }));
        }
        let mut world = Self { catalog: Arc::new(catalog), files, truth: Arc::default() };
        world.truth = Arc::new(world.assemble());
        world
    }

    /// The same with checksums in the catalog.
    pub(crate) fn with_checksums(mut self) -> Self {
        let mut catalog = (*self.catalog).clone();
        for key in self.keys() {
            let layer = catalog.layers[key.layer.index()].as_mut().expect("keys name real layers");
            let checksums = layer.layout.checksums(&self.truth[&key]);
            layer.records[key.expert.index()].checksums = Some(checksums);
        }
        self.catalog = Arc::new(catalog);
        self
    }

    pub(crate) fn keys(&self) -> Vec<ExpertKey> {
        let mut keys = Vec::new();
        for (layer, records) in self.catalog.layers.iter().enumerate() {
            let count = records.as_ref().map_or(0, |records| records.records.len());
            keys.extend((0..count).map(|expert| key(layer, expert)));
        }
        keys
    }

    /// Records, put together in the most obvious way.
    fn assemble(&self) -> HashMap<ExpertKey, Vec<u8>> {
        let record = |key: ExpertKey| {
            let layer = self.catalog.layer(key.layer);
            let mut record = vec![0; layer.layout.bytes()];
            for piece in &self.catalog.record(key).pieces {
                let Extent { file, offset, bytes } = piece.extent;
                let bytes = &self.files[file.0 as usize][offset as usize..][..bytes as usize];
                layer.place(piece, bytes, &mut record);
            }
            let weights = layer.layout.gate.bytes() + layer.layout.up.bytes();
            record[weights..layer.layout.first_part_bytes()].fill(0);
            record[layer.layout.first_part_bytes() + layer.layout.down.bytes()..].fill(0);
            (key, record)
        };
        self.keys().into_iter().map(record).collect()
    }
}

pub(crate) fn key(layer: usize, expert: usize) -> ExpertKey {
    ExpertKey { layer: LayerIndex(layer as u16), expert: ExpertIndex(expert as u16) }
}

pub(crate) fn experts(list: impl IntoIterator<Item = u16>) -> Vec<ExpertIndex> {
    list.into_iter().map(ExpertIndex).collect()
}

/// A budget of `slots` slots of the one class that `world` has.
pub(crate) fn slots(world: &World, slots: usize, staging_bytes: u64) -> StoreOptions {
    let layer = world.catalog.layers.iter().flatten().next().expect("there is a layer");
    let budget_bytes = (slots * layer.layout.bytes()) as u64 + staging_bytes;
    StoreOptions { budget_bytes, policy: PolicyKind::Auto, top_k: 2, chunk_bytes: CHUNK_BYTES }
}
