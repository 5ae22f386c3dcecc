//! A conversion streams: its memory does not grow with the layer.

use std::{fs, ops::ControlFlow};

use fm_convert::Conversion;
use fm_testkit::{
    counting_alloc::{CountingAlloc, live_bytes, peak_bytes, reset_peak},
    tiny_checkpoint::{Family, Layout, TinyModel},
};

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

#[test]
fn memory_is_two_buffers_and_a_run_however_long_a_layer_is() {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let (source, out) = (dir.path().join("source"), dir.path().join("out"));
    let model = TinyModel {
        hidden: 256,
        moe_ffn: 512,
        experts: 48,
        layers: 1,
        ..TinyModel::new(Family::Qwen3Moe)
    };
    model.write(&source, &Layout::Hf, 1);
    let buffer_bytes = 2 << 20;
    let mut peaks = Vec::new();
    for (name, buffer_bytes) in [("small", buffer_bytes), ("large", 4 * buffer_bytes)] {
        reset_peak();
        let before = live_bytes();
        let out = out.join(name);
        let conversion = Conversion { checkpoint: &source, out: &out, buffer_bytes };
        conversion.run(&mut |_| ControlFlow::Continue(())).expect("it converts");
        let peak = peak_bytes() - before;
        // Two batches, a run of pieces as long as a batch, the trunk's chunk, and the catalog.
        let bound = 3 * buffer_bytes as u64 + (1 << 20);
        assert!(peak <= bound, "{name}: {peak} bytes at most, {bound} allowed");
        peaks.push(peak);
    }
    let layer = fs::metadata(out.join("small/experts/layer-000.bin")).expect("a layer").len();
    assert!(layer > 4 * peaks[0], "a layer of {layer} bytes says nothing about {}", peaks[0]);
}
