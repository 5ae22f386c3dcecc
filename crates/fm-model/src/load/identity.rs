//! Which model a state belongs to: everything that its arithmetic depends on, and samples of its weights.

use std::{
    fmt::{self, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use fm_format::{
    record::{Extent, LayerRecords, MatrixRole, Place, Record},
    source::Files,
    together::together,
};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use super::SAMPLE_BYTES;
use crate::{
    error::LoadError,
    spec::{MatrixSource, ModelSpec, for_each_tensor},
};

/// Reads that wait at a time: a disk that seeks by electrons answers so many as fast as one.
const THREADS: usize = 8;

/// Experts of a layer that are looked into.
const EXPERTS: usize = 4;

/// Tells apart models that must not continue each other's sessions: the whole description, every
/// layer of it, all small tensors, and samples of all matrices and of some experts of every layer, of
/// codes, scales and biases alike. It says nothing of where files lie and when they were written, so
/// that a copy of a model continues what its original began.
///
/// Cost: a read of 4 KiB per sample, several at a time.
///
/// # Errors
/// If a read fails or comes up short.
pub fn identity(files: &Files, spec: &ModelSpec) -> Result<u128, LoadError> {
    let mut hash = Hashed(Xxh3Default::new());
    // What is added to a description some day is in here without anybody remembering it. Records are
    // left out: there may be a hundred thousand of them, and samples stand for them.
    let described = ModelSpec { catalog: Arc::default(), ..spec.clone() };
    let layouts = spec.catalog.layers.iter().map(|layer| {
        layer.as_ref().map(|LayerRecords { layout, records }| (*layout, records.len()))
    });
    let layouts: Vec<_> = layouts.collect();
    write!(hash, "{described:?} {layouts:?}").expect("a hash takes everything");
    for sample in hashes(files, &samples(spec))? {
        hash.0.update(&sample.to_le_bytes());
    }
    Ok(hash.0.digest128())
}

/// Takes text without keeping it.
struct Hashed(Xxh3Default);

impl Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

/// Everything that is read, in a fixed order.
fn samples(spec: &ModelSpec) -> Vec<Extent> {
    let mut extents = Vec::new();
    for_each_tensor(
        spec,
        &mut |matrix| match matrix.source {
            MatrixSource::Plain(extent) => extents.extend(places(extent)),
            MatrixSource::Planar { codes, scales, biases, .. } => {
                let parts = [codes, scales].into_iter().chain(biases);
                extents.extend(parts.flat_map(places));
            }
        },
        &mut |_| {},
    );
    for_each_tensor(spec, &mut |_| {}, &mut |vector| extents.push(vector.extent));
    for (index, layer) in spec.catalog.layers.iter().enumerate() {
        let Some(layer) = layer else { continue };
        let experts = layer.records.len();
        // Others in every layer, far from each other.
        let chosen = (0..EXPERTS.min(experts)).map(|n| (index + n * experts / EXPERTS) % experts);
        chosen.for_each(|expert| sample_record(layer, &layer.records[expert], &mut extents));
    }
    extents
}

/// Places of every piece, and of every matrix within one that holds several.
fn sample_record(layer: &LayerRecords, record: &Record, extents: &mut Vec<Extent>) {
    for piece in &record.pieces {
        extents.extend(places(piece.extent));
        let Place::Copy { at } = piece.place else { continue };
        for role in MatrixRole::ALL {
            let inside = layer.layout.offset(role).checked_sub(at).map(|inside| inside as u64);
            let inside = inside.filter(|inside| (1..piece.extent.bytes).contains(inside));
            let from = |inside| Extent {
                offset: piece.extent.offset + inside,
                bytes: piece.extent.bytes - inside,
                ..piece.extent
            };
            extents.extend(inside.map(from).into_iter().flat_map(places));
        }
    }
}

/// The beginning, the middle and the end, as far as they do not overlap.
fn places(extent: Extent) -> impl Iterator<Item = Extent> {
    let bytes = extent.bytes.min(SAMPLE_BYTES);
    let last = extent.bytes - bytes;
    let mut starts = vec![0, last / 2, last];
    starts.dedup_by(|start, before| *start < *before + bytes);
    starts.into_iter().map(move |start| Extent { offset: extent.offset + start, bytes, ..extent })
}

/// Of all of them, in their order, read by several threads: those of experts wait for the disk. Vectors
/// may be megabytes each, so what is kept of them is small.
fn hashes(files: &Files, extents: &[Extent]) -> Result<Vec<u128>, LoadError> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(vec![0; extents.len()]);
    let work = || -> Result<(), LoadError> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(extent) = extents.get(index) else { return Ok(()) };
            let hash = xxh3_128(&files.read_extent(*extent)?);
            found.lock().expect("no reader panics")[index] = hash;
        }
    };
    together(THREADS, work).into_iter().collect::<Result<(), _>>()?;
    Ok(found.into_inner().expect("no reader panics"))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    use fm_format::source::Checkpoint;
    use fm_testkit::{
        golden::copy_files,
        tiny_checkpoint::{Family, Layout, MlxLayout, TinyModel},
    };

    use super::*;
    use crate::{
        arch::describe,
        spec::{FfnSpec, MixerSpec},
    };

    type Change = fn(&mut ModelSpec);

    fn opened(dir: &Path) -> (Files, ModelSpec) {
        let checkpoint = Checkpoint::open(dir).unwrap();
        (Files::new(checkpoint.files.clone()), describe(&checkpoint).unwrap())
    }

    fn written(layout: &Layout) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        TinyModel::new(Family::Qwen3Moe).write(dir.path(), layout, 1);
        dir
    }

    #[test]
    fn everything_that_arithmetic_depends_on_tells_models_apart_and_a_copy_is_the_same() {
        let dir = written(&Layout::Hf);
        let (files, spec) = opened(dir.path());
        let changes: [(&str, Change); 6] = [
            ("nothing", |_| ()),
            ("eps", |spec| spec.norm_eps *= 10.0),
            ("theta", |spec| attention(spec).rotary.theta *= 10.0),
            ("rotated values", |spec| attention(spec).rotary.dim -= 2),
            ("window", |spec| attention(spec).shape.window = Some(3)),
            ("top_k", |spec| moe(spec).routing.top_k -= 1),
        ];
        let mut found = BTreeMap::new();
        for (name, change) in changes {
            let mut changed = spec.clone();
            change(&mut changed);
            let earlier = found.insert(identity(&files, &changed).unwrap(), name);
            assert_eq!(earlier, None, "{name}");
        }
        let copy = tempfile::tempdir().unwrap();
        copy_files(dir.path(), copy.path());
        let (files, spec) = opened(copy.path());
        assert_eq!(found.get(&identity(&files, &spec).unwrap()), Some(&"nothing"));
    }

    fn attention(spec: &mut ModelSpec) -> &mut crate::spec::AttentionSpec {
        match &mut spec.layers.last_mut().unwrap().mixer {
            MixerSpec::Attention(attention) => attention,
            other => panic!("{other:?}"),
        }
    }

    fn moe(spec: &mut ModelSpec) -> &mut crate::spec::MoeSpec {
        match &mut spec.layers.last_mut().unwrap().ffn {
            FfnSpec::Moe(moe) => moe,
            FfnSpec::Mlp(mlp) => panic!("{mlp:?}"),
        }
    }

    #[test]
    fn codes_scales_and_biases_of_experts_and_trunk_are_looked_into() {
        let dir = written(&Layout::Mlx(MlxLayout::uniform(4, 32)));
        let (files, spec) = opened(dir.path());
        let usual = identity(&files, &spec).unwrap();
        let tensors = Checkpoint::open(dir.path()).unwrap().tensors;
        let file = files_of(dir.path());
        let weights = fs::read(&file).unwrap();
        for name in tensors.keys().filter(|name| name.contains("layers.1.")) {
            let extent = tensors[name].extent;
            let mut damaged = weights.clone();
            let range = extent.offset as usize..(extent.offset + extent.bytes) as usize;
            damaged[range].iter_mut().for_each(|byte| *byte ^= 0x80);
            fs::write(&file, damaged).unwrap();
            let (files, spec) = opened(dir.path());
            assert_ne!(identity(&files, &spec).unwrap(), usual, "{name}");
        }
    }

    fn files_of(dir: &Path) -> std::path::PathBuf {
        let mut found = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        found.find(|path| path.extension().is_some_and(|kind| kind == "safetensors")).unwrap()
    }
}
