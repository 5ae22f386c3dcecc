//! Keys and values in f16: near those in f32, and the same bits whatever way led to them.

use std::{fs, io::Cursor, ops::ControlFlow};

use fm_kernels::{
    Backend, Cpu,
    backend::{KvFormat, KvOverflow},
};
use fm_model::{Runner, runner::StepError};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{batch_of, bits, feed, mixed_checkpoint, open_with};

/// Largest difference of a row's logits as a share of the largest, in the median of the rows. Measured: 2e-5
/// to 1.3e-3; rows for which a router changes its mind are further off.
const NEAR: f32 = 0.004;

const CONTEXT: u32 = 192;

fn halves_are_near_and_repeatable<B: Backend<Bytes = [u8]>>(family: &str, device: fn() -> B) {
    let (dir, tokens) = mixed_checkpoint(family);
    let tokens = &tokens[..150];
    let runner = |format| open_with(&dir, device(), (16, format));
    let (mut exact, mut halves) = (runner(KvFormat::F32), runner(KvFormat::F16));
    let run = |runner: &mut dyn Runner, chunk| {
        let session = runner.open(CONTEXT).unwrap();
        let logits = feed(runner, session, tokens, chunk);
        runner.close(session);
        logits
    };
    let (want, got) = (run(&mut exact, 150), run(&mut halves, 150));
    let distance = |(want, got): (&Vec<f32>, &Vec<f32>)| {
        let off = want.iter().zip(got).map(|(want, got)| (want - got).abs()).fold(0.0, f32::max);
        off / want.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()))
    };
    let mut distances: Vec<f32> = want.iter().zip(&got).map(distance).collect();
    distances.sort_by(f32::total_cmp);
    let (median, largest) = (distances[75], distances[149]);
    assert!(largest > 0.0 && median < NEAR, "{family}: {median:e}, at most {largest:e}");
    for chunk in [1, 7, 64] {
        assert!(bits(&run(&mut halves, chunk)) == bits(&got), "{family}: chunks of {chunk}");
    }

    let save = |runner: &mut dyn Runner| {
        let session = runner.open(CONTEXT).unwrap();
        feed(runner, session, &tokens[..100], 100);
        let mut file = Vec::new();
        runner.save(session, &mut file).unwrap();
        file
    };
    let (whole, file) = (save(&mut exact), save(&mut halves));
    let mut later = runner(KvFormat::F16);
    let [f32_block, f16_block] = [exact.piece_bytes().block, later.piece_bytes().block];
    let checksum = size_of::<u64>() as u64;
    assert_eq!(f32_block - checksum, 2 * (f16_block - checksum));
    assert_eq!((whole.len() - file.len()) as u64, 2 * (f32_block - f16_block));
    let loaded = later.load(CONTEXT, &mut Cursor::new(&file)).unwrap();
    let rest = feed(&mut later, loaded, &tokens[100..], 50);
    assert!(bits(&rest) == bits(&got[100..]), "{family}: loaded");
}

for_each_device_and_family! { halves_are_near_and_repeatable }

/// Sets all of a layer's key norm, in a copy of a checkpoint, to 1e5.
fn with_large_keys(family: &str) -> TempDir {
    let (from, dir) = (mixed_checkpoint(family).0, TempDir::new().unwrap());
    for name in ["config.json", "model.safetensors"] {
        fs::copy(from.join(name), dir.path().join(name)).unwrap();
    }
    let path = dir.path().join("model.safetensors");
    let mut file = fs::read(&path).unwrap();
    let (length, rest) = file.split_first_chunk_mut().unwrap();
    let (header, data) = rest.split_at_mut(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let norm = &header["model.layers.1.self_attn.k_norm.weight"];
    assert_eq!(norm["dtype"], "BF16");
    let offset = |at: usize| norm["data_offsets"][at].as_u64().unwrap() as usize;
    data[offset(0)..offset(1)].as_chunks_mut().0.fill([0xc3, 0x47]);
    fs::write(path, file).unwrap();
    dir
}

#[test]
fn a_key_that_f16_cannot_hold_is_an_error_and_the_session_stays_where_it_was() {
    let dir = with_large_keys("qwen3_moe");
    let tokens = mixed_checkpoint("qwen3_moe").1;
    let runner = |format| open_with(dir.path(), Cpu::open(2), (16, format));
    let mut exact = runner(KvFormat::F32);
    let session = exact.open(CONTEXT).unwrap();
    feed(&mut exact, session, &tokens[..20], 20);
    let mut halves = runner(KvFormat::F16);
    let session = halves.open(CONTEXT).unwrap();
    let batch = batch_of(session, &tokens, 0..20);
    let error = halves.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap_err();
    let StepError::Device(error) = error else { panic!("{error}") };
    let overflow = error.source.downcast_ref::<KvOverflow>().unwrap().to_string();
    assert!(overflow.ends_with("is beyond f16; keep them in f32"), "{overflow}");
    assert_eq!(halves.position(session).unwrap(), 0);
}
