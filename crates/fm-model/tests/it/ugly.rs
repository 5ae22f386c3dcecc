//! Shapes that no golden has, against the oracle: a second implementation, in f64, that shares no
//! line with this one.

use std::path::Path;

use fm_kernels::{Backend, backend::Numerics, cpu::Cpu, reference::Reference};
use fm_model::Runner;
use fm_testkit::{
    compare::max_abs_diff,
    oracle::Oracle,
    tiny_checkpoint::{Float, LatentShape, Layout, MlxLayout, SmallFloats, TinyModel},
    ugly::{ugly_gguf_models, ugly_mlx_models, ugly_models},
};

use crate::harness::{feed, open};

/// f32 rounding moves these logits by up to 3e-4, see `fm_testkit::ugly`; quantised activations more.
fn tolerance(model: &TinyModel, numerics: Numerics) -> f64 {
    match numerics {
        // Three times what was measured.
        Numerics::Int15 => 2e-2,
        Numerics::Int8 => 5.0,
        _ if model.is_hybrid() => 2e-3,
        _ => 1e-3,
    }
}

/// Experts must be chosen clearly, or two correct implementations choose differently.
const ROUTER_GAP: f64 = 0.05;

/// The model at `path` in each of `numerics` against the oracle, which reads the same weights as `published`.
/// The oracle takes longer than all of them.
fn check(name: &str, model: &TinyModel, (path, published): (&Path, &Path), numerics: &[Numerics]) {
    let oracle = Oracle::load(published);
    let tokens = oracle.clear_prompt(24, ROUTER_GAP, 11);
    let want = oracle.run(&tokens).logits.concat();
    for numerics in numerics {
        let found = match numerics {
            Numerics::Reference => logits(path, Reference::open(), &tokens),
            numerics => logits(path, Cpu::open(2).in_numerics(*numerics), &tokens),
        };
        let (worst, tolerance) = (max_abs_diff(&found, &want), tolerance(model, *numerics));
        assert!(worst <= tolerance, "{name} in {numerics}: {worst:e}");
    }
}

fn logits<B: Backend<Bytes = [u8]>>(path: &Path, device: B, tokens: &[u32]) -> Vec<f32> {
    let mut runner = open(path, device);
    let session = runner.open(64).unwrap();
    feed(&mut runner, session, tokens, 7).concat()
}

fn published_by_hugging_face(family: &str, numerics: &[Numerics]) {
    let models = ugly_models().into_iter().filter(|(_, model)| model.family.name() == family);
    for (i, (name, model)) in models.enumerate() {
        let dir = tempfile::tempdir().unwrap();
        model.write(dir.path(), &Layout::Hf, 1 + i % 3);
        check(name, &model, (dir.path(), dir.path()), numerics);
    }
}

fn published_by_mlx(family: &str, numerics: &[Numerics]) {
    let models =
        ugly_mlx_models().into_iter().filter(|(_, model, _)| model.family.name() == family);
    for (i, (name, model, layout)) in models.enumerate() {
        let dir = tempfile::tempdir().unwrap();
        model.write(dir.path(), &Layout::Mlx(layout), 1 + i % 3);
        check(name, &model, (dir.path(), dir.path()), numerics);
    }
}

fn published_as_gguf(family: &str, numerics: &[Numerics]) {
    let models =
        ugly_gguf_models().into_iter().filter(|(_, model, _)| model.family.name() == family);
    for (name, model, layout) in models {
        let dir = tempfile::tempdir().unwrap();
        model.write_gguf(dir.path(), &layout);
        // The directory of one model, or any of its parts.
        let part = format!("model-{0:05}-of-{0:05}.gguf", layout.parts);
        let path = if layout.parts > 1 { dir.path().join(part) } else { dir.path().into() };
        check(name, &model, (&path, &dir.path().join("hf")), numerics);
    }
}

/// The published layout, packed as vendors pack it. Widths are such that a row ends inside a tile, and
/// in some families with half or a quarter of a block.
fn published_in_small_floats(family: &str, numerics: &[Numerics]) {
    let odd = ugly_models().into_iter().find(|(_, model)| model.family.name() == family);
    let (_, odd) = odd.expect("every family has an ugly model");
    let plain = Layout::Mlx(MlxLayout::default());
    let fp8 = |scale| (Layout::Hf, SmallFloats::Fp8(scale));
    let cases = [
        (fp8(Float::F32), 160, 96),
        (fp8(Float::Bf16), 320, 128),
        ((plain.clone(), SmallFloats::Mxfp4), 96, 32),
        ((plain.clone(), SmallFloats::Nvfp4), 80, 48),
        ((plain, SmallFloats::Mxfp8), 96, 64),
    ];
    // The experts of gpt-oss are packed in a way of their own in every layout.
    let cases = if family == "gpt_oss" { &cases[..2] } else { &cases };
    for ((layout, packing), hidden, moe_ffn) in cases {
        // Tiles of 128 rows end inside the heads that `kv_b_proj` is cut into.
        let q_rank = odd.latent.q_rank.map(|_| 96);
        let latent = LatentShape { q_rank, rank: 160, ..odd.latent };
        let (hidden, moe_ffn) = (*hidden, *moe_ffn);
        let model = TinyModel { hidden, moe_ffn, latent, layers: 2, ..odd.clone() };
        let dir = tempfile::tempdir().unwrap();
        model.write(&dir.path().join("from"), layout, 1);
        let packed = packing.repack(&dir.path().join("from"), dir.path());
        assert!(packed > 4, "{family} {packing:?}: {packed} matrices are packed");
        let paths = (&*dir.path().join("packed"), &*dir.path().join("plain"));
        check(&format!("{family} {packing:?}"), &model, paths, numerics);
    }
}

const FLOATS: &[Numerics] = &[Numerics::Reference, Numerics::F32];

mod in_floats {
    for_each_family! { super::super::FLOATS; published_in_small_floats published_by_hugging_face }
}

// What is packed also in the numerics that arrange it: some of these matrices are, others cannot be.
mod in_all_numerics {
    for_each_family! {
        ::fm_kernels::backend::Numerics::ALL;
        published_as_gguf published_by_mlx
    }
}
