//! A model with every expert in memory, on the scalar reference or the CPU.

use std::{
    error::Error,
    fs,
    ops::{ControlFlow, Range},
    path::{Path, PathBuf},
};

use fm_format::{
    key::LayerIndex,
    record::{Catalog, MatrixRole},
    source::{Checkpoint, Files},
};
use fm_kernels::{
    Backend,
    backend::{Combine, KvFormat, Routes, View, ViewMut},
};
use fm_model::{
    Runner,
    arch::describe,
    decoder::{Decoder, DecoderOptions},
    experts::{
        ARRIVAL_ROWS_MAX, ExpertBatch, ExpertsFailed, ExpertsLost, LossCause, RoutedExperts,
        RowsByExpert, arrange_record, expert_weights,
    },
    load::Loader,
    model_runner::{ModelRunner, RunnerOptions},
    runner::{Batch, Row, RowInput, SessionId, StepError, Wants},
};
use fm_testkit::golden::{Golden, golden_dir};
use serde_json::Value;

/// Every record of a catalog, and a list of experts that pretend to be unreadable.
pub(crate) struct Resident {
    catalog: Catalog,
    records: Vec<Vec<Vec<u8>>>,
    grouped: RowsByExpert,
    pub(crate) broken: Vec<(u16, u16)>,
    /// Rows of every layer with experts so far.
    pub(crate) rows: Vec<usize>,
}

impl Resident {
    pub(crate) fn read<B: Backend<Bytes = [u8]>>(device: &B, catalog: Catalog) -> Self {
        let files = Files::new(catalog.files.clone());
        let read_layer = |layer: &fm_format::record::LayerRecords| {
            let read = |record: &fm_format::record::Record| {
                let layout = &layer.layout;
                let mut record_bytes = vec![0xAA; layout.bytes()];
                for piece in &record.pieces {
                    let bytes = files.read_extent(piece.extent).unwrap();
                    layer.place(piece, &bytes, &mut record_bytes);
                }
                // As a reader may leave them: each matrix a little behind its place.
                let behind = [32, 4129, 5000];
                let mut slot = vec![0xAA; layout.bytes() + behind[2]];
                let mut starts = layout.starts();
                for ((role, start), behind) in
                    MatrixRole::ALL.into_iter().zip(&mut starts).zip(behind)
                {
                    *start += behind;
                    let bytes = layout.shape(role).bytes();
                    slot[*start..][..bytes]
                        .copy_from_slice(&record_bytes[layout.offset(role)..][..bytes]);
                }
                arrange_record(device, layout, &mut slot, starts).unwrap();
                slot.truncate(layout.bytes());
                slot
            };
            layer.records.iter().map(read).collect()
        };
        let layers = catalog.layers.iter();
        let records = layers.map(|l| l.as_ref().map(read_layer).unwrap_or_default()).collect();
        Self {
            catalog,
            records,
            grouped: RowsByExpert::default(),
            broken: Vec::new(),
            rows: Vec::new(),
        }
    }
}

impl<B: Backend<Bytes = [u8]>> RoutedExperts<B> for Resident {
    type Ticket = ();

    fn begin(&mut self, _: LayerIndex, _: &Routes<B>) -> Result<(), ExpertsFailed> {
        Ok(())
    }

    fn finish(
        &mut self,
        device: &B,
        (): (),
        batch: ExpertBatch<'_, B>,
    ) -> Result<(), ExpertsFailed> {
        let ExpertBatch { layer, form, routes, x, out, scratch } = batch;
        let ViewMut { buf, offset, rows, cols, stride } = out;
        self.rows.push(rows);
        let few = rows <= ARRIVAL_ROWS_MAX;
        let top_k = routes.top_k;
        self.grouped.group(routes, |row, j| if few { row * top_k + j } else { row });
        let mut union = self.grouped.union.clone();
        if few {
            union.reverse(); // any order of arrival must do
        }
        let records = self.catalog.layer(layer);
        let mut lost = Vec::new();
        for expert in union {
            if self.broken.contains(&(layer.0, expert.0)) {
                let cause = Box::<dyn Error + Send + Sync>::from(format!("{expert:?} is broken"));
                lost.push((expert, LossCause::from(cause)));
                continue;
            }
            let record = &self.records[layer.index()][expert.index()];
            let weights = expert_weights(device, records, form, expert, record);
            let chosen = self.grouped.rows(expert);
            let (combine, target) = if few {
                let results = ViewMut::new(&mut scratch.results, rows * top_k, cols);
                (Combine::Store, results)
            } else {
                (Combine::Accumulate, ViewMut { buf: &mut *buf, offset, rows, cols, stride })
            };
            device.expert_rows(&weights, x, chosen, &mut scratch.expert, combine, target)?;
        }
        if few {
            let results = View::new(&scratch.results, rows * top_k, cols);
            let out = ViewMut { buf, offset, rows, cols, stride };
            device.combine_rows(results, &routes.weights, out)?;
        }
        lost.sort_unstable_by_key(|(expert, _)| *expert);
        if lost.is_empty() {
            return Ok(());
        }
        Err(ExpertsLost { layer, experts: lost }.into())
    }
}

/// Makes every check of a file a test per device and family: `module::cpu::qwen3_next::check`.
/// `cargo xtask mutants` demands a red test for each family that a mistake is made in.
macro_rules! for_each_device_and_family {
    ($($check:ident)+) => {
        mod reference {
            for_each_family! { ::fm_kernels::reference::Reference::open; $($check)+ }
        }
        mod cpu {
            for_each_family! { || ::fm_kernels::cpu::Cpu::open(2); $($check)+ }
        }
    };
}

/// As [`for_each_device_and_family`] for the numerics of the CPU that quantise activations.
macro_rules! for_each_integer_numerics_and_family {
    ($($check:ident)+) => {
        mod int15 {
            for_each_family! {
                || ::fm_kernels::cpu::Cpu::open(2).in_numerics(::fm_kernels::backend::Numerics::Int15);
                $($check)+
            }
        }
        mod int8 {
            for_each_family! {
                || ::fm_kernels::cpu::Cpu::open(2).in_numerics(::fm_kernels::backend::Numerics::Int8);
                $($check)+
            }
        }
    };
}

macro_rules! for_each_family {
    ($device:expr; $($check:ident)+) => {
        for_each_check! { deepseek_v3, $device; $($check)+ }
        for_each_check! { glm4_moe_lite, $device; $($check)+ }
        for_each_check! { gpt_oss, $device; $($check)+ }
        for_each_check! { mixtral, $device; $($check)+ }
        for_each_check! { minimax_m2, $device; $($check)+ }
        for_each_check! { qwen3_moe, $device; $($check)+ }
        for_each_check! { qwen3_next, $device; $($check)+ }
        for_each_check! { qwen3_5_moe, $device; $($check)+ }
    };
}

macro_rules! for_each_check {
    ($family:ident, $device:expr; $($check:ident)+) => {
        mod $family {$(
            #[test]
            fn $check() {
                super::super::$check(stringify!($family), $device);
            }
        )+}
    };
}

/// Whether some layers of a family are delta nets, whose memories cannot be taken back.
pub(crate) fn is_hybrid(family: &str) -> bool {
    matches!(family, "qwen3_next" | "qwen3_5_moe")
}

pub(crate) const ROWS_MAX: usize = 160;
pub(crate) const SHORT_ROWS_MAX: usize = 40;
pub(crate) const SESSIONS_MAX: usize = 4;
pub(crate) const MARKS_MAX: usize = 6;

pub(crate) fn open<B: Backend<Bytes = [u8]>>(dir: &Path, device: B) -> ModelRunner<B, Resident> {
    open_with(dir, device, (16, KvFormat::F32))
}

/// As [`open`], with room for the keys and values of `kv_blocks` blocks.
pub(crate) fn open_with_blocks<B: Backend<Bytes = [u8]>>(
    dir: &Path,
    device: B,
    kv_blocks: usize,
) -> ModelRunner<B, Resident> {
    open_with(dir, device, (kv_blocks, KvFormat::F32))
}

/// As [`open_with_blocks`], with keys and values in a format.
pub(crate) fn open_with<B: Backend<Bytes = [u8]>>(
    dir: &Path,
    device: B,
    (kv_blocks, kv_format): (usize, KvFormat),
) -> ModelRunner<B, Resident> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let spec = describe(&checkpoint).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let files = Files::new(checkpoint.files.clone());
    let decoder = DecoderOptions {
        rows_max: ROWS_MAX,
        logits_rows_max: ROWS_MAX,
        short_rows_max: SHORT_ROWS_MAX,
        top_k: None,
    };
    let loaded = Decoder::load(&Loader::new(&device, &files, 2), &spec, decoder).unwrap();
    let experts = Resident::read(&device, spec.catalog.as_ref().clone());
    let options = RunnerOptions {
        decoder,
        sessions_max: SESSIONS_MAX,
        kv_blocks,
        kv_format,
        marks_max: MARKS_MAX,
        fingerprint: 7,
    };
    ModelRunner::new(device, loaded, experts, &spec, options).unwrap()
}

pub(crate) fn row(session: SessionId, token: u32, position: u32) -> Row {
    let wants = Wants { logits: true, ..Wants::default() };
    Row { session, input: RowInput::Token(token), position, wants }
}

/// Tokens of a range, logits wanted after each.
pub(crate) fn batch_of(session: SessionId, tokens: &[u32], range: Range<usize>) -> Batch {
    let rows = range.map(|at| row(session, tokens[at], at as u32));
    Batch { rows: rows.collect(), hidden_layer: None }
}

/// Starts a step and breaks it off after `layers` layers.
pub(crate) fn cancel(runner: &mut dyn Runner, batch: &Batch, layers: usize) {
    let mut done = 0;
    let cancelled = runner.step(batch, &mut |_| {
        done += 1;
        if done == layers { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(cancelled, Err(StepError::Cancelled)));
}

/// The checkpoint of a family with the most formats in it, and a prompt of 150 tokens.
pub(crate) fn mixed_checkpoint(family: &str) -> (PathBuf, Vec<u32>) {
    let dir = golden_dir(family);
    let tokens = Golden::open(&dir.join("golden.safetensors")).tokens("long.tokens");
    (dir.join("mlx-mixed"), tokens)
}

/// Changes the `config.json` of a checkpoint.
pub(crate) fn edit_config(dir: &Path, edit: impl FnOnce(&mut Value)) {
    let path = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    fs::write(path, config.to_string()).unwrap();
}

/// Feeds tokens in chunks and returns the logits after each of them.
pub(crate) fn feed(
    runner: &mut dyn Runner,
    session: SessionId,
    tokens: &[u32],
    chunk: usize,
) -> Vec<Vec<f32>> {
    let mut out = Vec::new();
    let vocab = runner.vocab();
    for tokens in tokens.chunks(chunk) {
        let position = runner.position(session).unwrap();
        let rows = tokens.iter().zip(position..).map(|(token, at)| row(session, *token, at));
        let batch = Batch { rows: rows.collect(), hidden_layer: None };
        let output = runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(output.spoiled.is_empty());
        out.extend(output.logits.chunks_exact(vocab).map(<[f32]>::to_vec));
    }
    out
}

pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    best.expect("a vocabulary is not empty") as u32
}

pub(crate) fn bits(logits: &[Vec<f32>]) -> Vec<Vec<u32>> {
    logits.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}
