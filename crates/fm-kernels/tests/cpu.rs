//! The CPU against the suite, on every instruction set, and against itself.

use fm_format::{
    quant::{self, FORMATS, FormatKind, QuantFormat, ScaleKind, fp8::e4m3},
    record::MatrixShape,
};
use fm_kernels::{
    backend::{AttentionShape, Backend, KV_BLOCK_TOKENS, KvView, Numerics, QMatrix, View, ViewMut},
    conformance::noise_weights,
    cpu::{Cpu, Level},
    host::{HostBuf, HostKv},
    reference::Reference,
    tolerance,
};
use proptest::prelude::*;

/// One for every instruction set of this machine, and the best on two threads.
fn devices(numerics: Numerics) -> Vec<Cpu> {
    let alone = Level::all().into_iter().map(|level| Cpu::with_level(level, 1));
    alone.chain([Cpu::open(2)]).map(|device| device.in_numerics(numerics)).collect()
}

mod in_f32 {
    fm_kernels::conformance!(super::devices(super::Numerics::F32));
}

mod in_int15 {
    fm_kernels::conformance!(super::devices(super::Numerics::Int15));
}

mod in_int8 {
    fm_kernels::conformance!(super::devices(super::Numerics::Int8));
}

/// A matrix of noise, and rows to multiply with it.
struct Operands {
    shape: MatrixShape,
    bytes: Vec<u8>,
    tokens: usize,
    x: HostBuf,
}

impl Operands {
    fn new(shape: MatrixShape, tokens: usize) -> Self {
        let x = (0..tokens * shape.cols).map(|i| ((i + 1) as f32 * 2.37).sin());
        let x = x.collect::<Vec<f32>>().into();
        Self { shape, bytes: noise_weights(shape, 1), tokens, x }
    }

    /// `W x`.
    fn product<B: Backend<Buf = HostBuf, Bytes = [u8]>>(&self, device: &B) -> HostBuf {
        let Self { shape, tokens, .. } = *self;
        let mut bytes = self.bytes.clone();
        let arranged = device.arranges(shape);
        if arranged {
            device.arrange(shape, &mut bytes).expect("the host");
        }
        let mut acts = device.acts(tokens, shape.cols).expect("memory");
        device.prepare(View::new(&self.x, tokens, shape.cols), &mut acts).expect("the host");
        let mut y = HostBuf::zeroed(tokens * shape.rows);
        let out = ViewMut::new(&mut y, tokens, shape.rows);
        device.matmul(QMatrix { bytes: &bytes, shape, arranged }, &acts, out).expect("the host");
        y
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let one = Cpu::open(1);
    let several = [2, 4].map(Cpu::open);
    for format in &FORMATS {
        for (rows, tokens) in [(301, 1), (301, 7), (40, 70)] {
            let operands = Operands::new(MatrixShape { rows, cols: 768, format }, tokens);
            let want = bits(&operands.product(&one));
            for device in &several {
                let got = bits(&operands.product(device));
                assert!(got == want, "{format:?}, {tokens} rows, {device:?}");
            }
        }
    }
}

/// All multiply and add with one rounding and add their lanes in the same order; tiles add integers.
#[test]
fn levels_with_fused_multiply_add_give_the_same_bits() {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut))]
    let mut levels: Vec<Level> = Level::all().into_iter().filter(|level| level.fuses()).collect();
    #[cfg(target_arch = "x86_64")]
    levels.extend(Level::avx512_of_another_core());
    let [best, others @ ..] = &levels[..] else {
        return fm_kernels::conformance::skipped(
            "levels_with_fused_multiply_add_give_the_same_bits",
        );
    };
    let all = [Numerics::F32, Numerics::Int15, Numerics::Int8];
    let on = |level: &Level| all.map(|numerics| Cpu::with_level(*level, 1).in_numerics(numerics));
    let (best, others) = (on(best), others.iter().map(on).collect::<Vec<_>>());
    for format in &FORMATS {
        // Tiles that are full, that are not, and that share rows; an odd panel; more than a pass.
        for (rows, tokens) in
            [(13, 1), (13, 7), (48, 1), (48, 7), (48, 8), (32, 16), (16, 39), (48, 70)]
        {
            let operands = Operands::new(MatrixShape { rows, cols: 768, format }, tokens);
            let want = best.each_ref().map(|device| bits(&operands.product(device)));
            for (device, want) in others.iter().flat_map(|devices| devices.iter().zip(&want)) {
                let got = bits(&operands.product(device));
                assert!(got == *want, "{format:?}, {tokens} rows, {device:?}");
            }
        }
    }
}

/// Multiplying with rows of the identity gives the weights back: decoding is exact.
#[test]
fn every_level_decodes_exactly() {
    let cols = 256;
    let mut identity = HostBuf::zeroed(cols * cols);
    identity.iter_mut().step_by(cols + 1).for_each(|x| *x = 1.0);
    for level in Level::all() {
        let device = Cpu::with_level(level, 1);
        for format in &FORMATS {
            let shape = MatrixShape { rows: 1, cols, format };
            let row = noise_weights(shape, 3);
            let mut want = vec![0.0; cols];
            format.decode_row(&row, &mut want);

            let mut acts = device.acts(cols, cols).unwrap();
            device.prepare(View::new(&identity, cols, cols), &mut acts).unwrap();
            let w = QMatrix { bytes: &row[..], shape, arranged: false };
            let mut together = HostBuf::zeroed(cols);
            device.matmul(w, &acts, ViewMut::new(&mut together, cols, 1)).unwrap();
            assert_eq!(together[..], want, "{level}, {format:?}");
            for (i, want) in want.iter().enumerate() {
                let one = View::new(&identity, cols, cols).rows(i, 1);
                device.prepare(one, &mut acts).unwrap();
                let mut alone = HostBuf::zeroed(1);
                device.matmul(w, &acts, ViewMut::new(&mut alone, 1, 1)).unwrap();
                assert_eq!(alone[0], *want, "{level}, {format:?}, weight {i}");
            }
        }
    }
}

/// Rows that lie behind their place, by less than a panel or by several, are arranged as those in place: several
/// passes, and a last one that is short.
#[test]
fn rows_behind_their_place_become_the_same_panels() {
    for level in Level::all() {
        let device = Cpu::with_level(level, 2).in_numerics(Numerics::Int15);
        for format in &FORMATS {
            let shape = MatrixShape { rows: 1040, cols: 768, format };
            if !device.arranges(shape) {
                continue;
            }
            let rows = noise_weights(shape, 5);
            let mut in_place = rows.clone();
            device.arrange(shape, &mut in_place).expect("the host");
            assert!(in_place != rows, "{level}, {format:?}");
            for behind in [1, 4095, 300_000] {
                let mut bytes = [&vec![0xAA; behind][..], &rows].concat();
                device.arrange(shape, &mut bytes).expect("the host");
                assert!(bytes[..rows.len()] == in_place, "{level}, {format:?}, {behind} behind");
            }
        }
    }
}

/// A format that no kernel knows: seven bits do not exist in the table.
static UNKNOWN: QuantFormat = QuantFormat {
    name: "affine7_g64",
    block_len: 64,
    block_bytes: 4 + 56,
    kind: FormatKind::Affine { bits: 7, group: 64, scale: ScaleKind::Bf16 },
    decode: quant::affine::decode::<7, false>,
    encode: Some(quant::affine::encode::<7, false>),
};

#[test]
fn a_format_without_a_kernel_runs_through_its_decode() {
    let reference = Reference::open();
    for level in Level::all() {
        let device = Cpu::with_level(level, 2);
        for tokens in [1, 9] {
            let shape = MatrixShape { rows: 21, cols: 1152, format: &UNKNOWN };
            let operands = Operands::new(shape, tokens);
            let (got, want) = (operands.product(&device), operands.product(&reference));
            for (got, want) in got.iter().zip(&want[..]) {
                let off = (got - want).abs() / want.abs().max(1.0);
                assert!(off < tolerance::DOT_F32 * 4.0, "{level}: {got} {want}");
            }
        }
    }
}

proptest! {
    /// `silu` and `sigmoid` are the only users of the exponential with a wide range.
    #[test]
    fn sigmoid_is_close_over_the_whole_range(x in prop::collection::vec(-120.0_f32..120.0, 1..70)) {
        for level in Level::all() {
            let device = Cpu::with_level(level, 1);
            let (gate, mut ones) = (HostBuf::from(&x[..]), HostBuf::from(vec![1.0; x.len()]));
            let out = ViewMut::new(&mut ones, 1, x.len());
            device.sigmoid_mul(View::new(&gate, 1, x.len()), out).unwrap();
            for (got, x) in ones.iter().zip(&x) {
                let want = 1.0 / (1.0 + (-f64::from(*x)).exp());
                let off = (f64::from(*got) - want).abs();
                // Relative to the value down to where f32 has no normal numbers left.
                prop_assert!(off <= 4.0 * f64::from(f32::EPSILON) * want + 1e-37, "{level} {x} {got}");
            }
        }
    }

    /// Where a value stands in a row, and how long the row is, changes no bit.
    #[test]
    fn the_place_in_a_row_does_not_matter(
        x in prop::collection::vec(-20.0_f32..20.0, 1..70),
        shift in 0_usize..16,
    ) {
        for level in Level::all() {
            let device = Cpu::with_level(level, 1);
            let run = |x: &[f32]| {
                let mut gate = HostBuf::from(x);
                let up = vec![0.7; x.len()].into();
                let out = ViewMut::new(&mut gate, 1, x.len());
                device.silu_mul(View::new(&up, 1, x.len()), out).unwrap();
                gate
            };
            let mut moved = vec![1.5; shift];
            moved.extend(&x);
            prop_assert_eq!(bits(&run(&x)), bits(&run(&moved)[shift..]));
        }
    }
}

/// How many heads share a task depends on the number of threads; what they read does not.
#[test]
fn heads_that_share_a_task_do_not_see_each_other() {
    let (kv_heads, k_dim, v_dim) = (2, 60, 56);
    let noise = |len: usize, seed: f32| -> HostBuf {
        let noise = (0..len).map(|i| ((i + 1) as f32 * (seed + 0.37)).sin());
        noise.collect::<Vec<f32>>().into()
    };
    let (position, rows, table) = (100_u32, 3, [1, 0]);
    let keys = HostKv::F32(noise(2 * kv_heads * KV_BLOCK_TOKENS * k_dim, 1.0));
    // Groups of eight, four and one, and those that leave a rest.
    let cases = Level::all().into_iter().flat_map(|level| [(16, level), (24, level)]);
    for (heads, level) in cases {
        let window = Some(100);
        let shape = AttentionShape { heads, kv_heads, k_dim, v_dim, scale: 0.3, window };
        let sinks: Vec<f32> = (0..heads).map(|head| head as f32 * 0.1).collect();
        let sinks = sinks.into();
        let kv = KvView { keys: &keys, values: None, table: &table, sinks: Some(&sinks) };
        let q = noise(rows * heads * k_dim, 2.0);
        let run = |threads, rows: usize| {
            let device = Cpu::with_level(level, threads);
            let mut out = HostBuf::zeroed(rows * heads * v_dim);
            let q = View::new(&q, rows, heads * k_dim);
            let view = ViewMut::new(&mut out, rows, heads * v_dim);
            device.attention(shape, q, &kv, position, view).unwrap();
            bits(&out)
        };
        let one = run(1, rows);
        for threads in [2, 3, 4, 24] {
            let case = format!("{level}, {heads} heads, {threads} threads");
            assert!(run(threads, rows) == one, "{case}");
            assert!(run(threads, 1) == one[..heads * v_dim], "{case}, one row");
        }
    }
}

/// All of them, on every level: a row has one, zeros, and meets ones.
#[test]
fn eight_bit_floats_are_what_their_bits_say() {
    let format = quant::by_name("fp8_g128").unwrap();
    let shape = MatrixShape { rows: 256, cols: 128, format };
    let mut weights = vec![0; shape.bytes()];
    for (code, row) in weights.chunks_mut(format.block_bytes).enumerate() {
        row[..4].copy_from_slice(&3.0_f32.to_le_bytes());
        row[4 + code % 128] = code as u8;
    }
    for level in Level::all() {
        let device = Cpu::with_level(level, 1);
        for rows in [1, 3] {
            let (x, mut y) = (vec![1.0; rows * 128].into(), HostBuf::zeroed(rows * 256));
            let mut acts = device.acts(rows, 128).unwrap();
            device.prepare(View::new(&x, rows, 128), &mut acts).unwrap();
            let w = QMatrix { bytes: &weights[..], shape, arranged: false };
            device.matmul(w, &acts, ViewMut::new(&mut y, rows, 256)).unwrap();
            for (at, found) in y.iter().enumerate() {
                let want = 3.0 * e4m3((at % 256) as u8);
                let same = *found == want || found.is_nan() && want.is_nan();
                assert!(same, "{level}, {rows} rows, code {}: {found} {want}", at % 256);
            }
        }
    }
}
