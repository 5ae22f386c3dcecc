//! How fast the CPU backend is, and how fast it could be.
//!
//! ```text
//! cargo bench -p fm-kernels -- [threads] [avx512|avx-vnni|avx2|portable] [only names that contain this]
//! ```
//!
//! Decode reads its weights from a set that no cache holds; every round is preceded by a read of
//! the same set on as many threads, because the memory of a shared machine changes its speed
//! within seconds. Prefill is compared with multiply-adds from registers. Medians of the rounds.

#![allow(clippy::print_stdout)] // it is what a benchmark is for

use std::{hint::black_box, thread, time::Instant};

use fm_format::{
    quant::{self, QuantFormat},
    record::MatrixShape,
};
use fm_kernels::{
    Backend, Cpu, WeightBytes,
    backend::{
        AttentionShape, DeltaInputs, DeltaShape, HeadOrder, KvFormat, KvView, Numerics, QMatrix,
        View, ViewMut,
    },
    conformance::noise_weights,
    cpu::{Level, probe},
    host::{HostBuf, HostKv},
};

/// Bytes of weights that decode walks through. Last caches of servers have up to half of it, and keep a part of what is
/// no larger than they are (`docs/experiments/0092`).
const SET_BYTES: usize = 1 << 30;

/// Measurements of one case.
const ROUNDS: usize = 7;

/// Operations of a measurement of what they cost when they do nothing.
const FORKS: usize = 100_000;

struct Bench {
    device: Cpu,
    /// The same in integer numerics.
    integers: [Cpu; 2],
    only: String,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let argument = |at: usize| arguments.get(at).map_or("", String::as_str);
    let threads = argument(0).parse().unwrap_or(2);
    let wanted = |level: &Level| argument(1).is_empty() || level.name() == argument(1);
    let level = Level::all().into_iter().find(wanted).expect("this machine has the level");
    let device = |numerics| Cpu::with_level(level, threads).in_numerics(numerics);
    let integers = [Numerics::Int15, Numerics::Int8].map(device);
    let bench = Bench { device: device(Numerics::F32), integers, only: argument(2).to_owned() };
    println!("{level}, {threads} threads");
    bench.forks();
    bench.cached();
    bench.arrange();
    bench.decode();
    bench.prefill();
    bench.delta_net();
    bench.attention();
    bench.written();
    bench.heads();
}

impl Bench {
    fn skips(&self, name: &str) -> bool {
        !name.contains(&self.only)
    }

    /// What every operation costs that is shared out.
    fn forks(&self) {
        let (name, threads) = ("fork and join", self.device.threads());
        if self.skips(name) {
            return;
        }
        let round = |_| [probe::fork_join(threads, FORKS).as_secs_f64() / FORKS as f64];
        let [seconds] = medians(&(0..ROUNDS).map(round).collect::<Vec<_>>());
        println!("{name}: {:.2} us", 1e6 * seconds);
    }

    fn decode(&self) {
        for format in &quant::FORMATS {
            self.decode_case(MatrixShape { rows: 2048, cols: 2048, format });
        }
        for name in ["affine4_g64", "bf16", "q4_k", "q6_k", "q8_0"] {
            for (rows, cols) in [(768, 2048), (2048, 768), (4096, 4096)] {
                let format = quant::by_name(name).expect("it is in the table");
                self.decode_case(MatrixShape { rows, cols, format });
            }
        }
    }

    fn decode_case(&self, shape: MatrixShape) {
        let name = format!("decode {} [{}, {}]", shape.format.name, shape.rows, shape.cols);
        self.decode_on(&self.device, shape, &name);
        for device in &self.integers {
            if device.arranges(shape) {
                self.decode_on(device, shape, &format!("{name} {}", device.numerics()));
            }
        }
    }

    fn decode_on(&self, device: &Cpu, shape: MatrixShape, name: &str) {
        if self.skips(name) {
            return;
        }
        let count = SET_BYTES / shape.bytes();
        let mut set = weights(shape.format, count * shape.bytes());
        let arranged = device.arranges(shape);
        for bytes in set.chunks_exact_mut(shape.bytes()).filter(|_| arranged) {
            device.arrange(shape, bytes).expect("the host");
        }
        let x = values(shape.cols);
        let mut acts = device.acts(1, shape.cols).expect("memory");
        device.prepare(View::new(&x, 1, shape.cols), &mut acts).expect("the host");
        let mut y = HostBuf::zeroed(shape.rows);
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let probe = read_probe(&set, self.device.threads());
            let start = Instant::now();
            for bytes in set.chunks_exact(shape.bytes()) {
                let w = QMatrix { bytes, shape, arranged };
                device.matmul(w, &acts, ViewMut::new(&mut y, 1, shape.rows)).expect("the host");
            }
            let rate = set.len() as f64 / start.elapsed().as_secs_f64() / 1e9;
            rounds.push([rate, probe, rate / probe]);
        }
        let [rate, probe, ratio] = medians(&rounds);
        let each = shape.bytes() as f64 / rate / 1e3;
        let weights = (shape.rows * shape.cols) as f64 / each / 1e3;
        let [best, best_probe] = best(&rounds);
        println!(
            "{name}: {each:.1} us, {rate:.1} GB/s, {weights:.1} G weights/s, read probe {probe:.1}, \
             ratio {ratio:.2}; best {best:.1} of {best_probe:.1}"
        );
    }

    /// Every format from the second cache, one row and several: what kernels do when memory is no limit.
    /// `tools/bench/kernel_shares.py` compares it with what they once did.
    fn cached(&self) {
        for format in &quant::FORMATS {
            let shape = MatrixShape { rows: 256, cols: 1536, format };
            for tokens in [1, 8] {
                self.products_case(("cached", 1e8), shape, tokens);
            }
        }
    }

    /// Rows to panels, as every expert that is read from disk.
    fn arrange(&self) {
        let device = &self.integers[0];
        for format in &quant::FORMATS {
            let shape = MatrixShape { rows: 768, cols: 2048, format };
            let name = format!("arrange {} [{}, {}]", format.name, shape.rows, shape.cols);
            if self.skips(&name) || !device.arranges(shape) {
                continue;
            }
            let mut set = weights(format, shape.bytes());
            let mut best = f64::INFINITY;
            for _ in 0..20 * ROUNDS {
                let start = Instant::now();
                device.arrange(shape, black_box(&mut *set)).expect("the host");
                best = best.min(start.elapsed().as_secs_f64());
            }
            let rate = set.len() as f64 / best / 1e9;
            println!("{name}: best {:.1} us, {rate:.1} GB/s", best * 1e6);
        }
    }

    fn prefill(&self) {
        for name in ["affine4_g64", "bf16", "q4_k", "q6_k", "iq2_xxs", "iq3_s"] {
            for (rows, cols) in [(768, 2048), (2048, 768), (2048, 2048)] {
                for tokens in [2, 4, 8, 32, 128, 512] {
                    let format = quant::by_name(name).expect("it is in the table");
                    let shape = MatrixShape { rows, cols, format };
                    self.products_case(("prefill", 1e9), shape, tokens);
                }
            }
        }
    }

    /// A round is so many operations.
    fn products_case(&self, (what, of_round): (&str, f64), shape: MatrixShape, tokens: usize) {
        let MatrixShape { rows, cols, format } = shape;
        let name = format!("{what} {} [{rows}, {cols}] x {tokens}", format.name);
        self.products_on(&self.device, shape, (tokens, of_round), &name);
        for device in &self.integers {
            if device.arranges(shape) {
                let name = format!("{name} {}", device.numerics());
                self.products_on(device, shape, (tokens, of_round), &name);
            }
        }
    }

    fn products_on(
        &self,
        device: &Cpu,
        shape: MatrixShape,
        (tokens, of_round): (usize, f64),
        name: &str,
    ) {
        if self.skips(name) {
            return;
        }
        let MatrixShape { rows, cols, format } = shape;
        let mut set = weights(format, shape.bytes());
        let arranged = device.arranges(shape);
        if arranged {
            device.arrange(shape, &mut set).expect("the host");
        }
        let x = values(tokens * cols);
        let mut acts = device.acts(tokens, cols).expect("memory");
        device.prepare(View::new(&x, tokens, cols), &mut acts).expect("the host");
        let mut y = HostBuf::zeroed(tokens * rows);
        let operations = 2.0 * (rows * cols * tokens) as f64;
        let repeats = (of_round / operations).ceil() as usize;
        let mut rounds = Vec::new();
        for _ in 0..3 * ROUNDS {
            let peak = fma_probe(self.device.threads());
            let start = Instant::now();
            for _ in 0..repeats {
                let w = QMatrix { bytes: &set[..], shape, arranged };
                let y = ViewMut::new(&mut y, tokens, rows);
                device.matmul(w, &acts, y).expect("the host");
            }
            let rate = operations * repeats as f64 / start.elapsed().as_secs_f64() / 1e9;
            rounds.push([rate, peak, rate / peak]);
        }
        let [rate, peak, ratio] = medians(&rounds);
        let [best, best_peak] = best(&rounds);
        let each = operations / rate / 1e3;
        let read = shape.bytes() as f64 / each / 1e3;
        println!(
            "{name}: {each:.1} us, {read:.1} GB/s, {rate:.0} GFLOP/s, peak {peak:.0}, ratio {ratio:.2}; \
             best {best:.1} of {best_peak:.1}"
        );
    }

    fn delta_net(&self) {
        for (value_heads, tokens) in [(32, 1), (64, 1), (32, 64)] {
            let name = format!("delta_net {value_heads} heads of 128 x 128, {tokens} tokens");
            if self.skips(&name) {
                continue;
            }
            let (k_dim, v_dim) = (128, 128);
            let (head_order, conv_taps) = (HeadOrder::Grouped, 4);
            let shape =
                DeltaShape { key_heads: 16, value_heads, head_order, k_dim, v_dim, conv_taps };
            let mut qkv = values(tokens * shape.channels());
            let (a, b) = (values(tokens * value_heads), values(tokens * value_heads));
            let (neg_a, dt_bias) = (vec![-0.1; value_heads].into(), vec![0.5; value_heads].into());
            let mut out = HostBuf::zeroed(tokens * value_heads * v_dim);
            let layers = SET_BYTES / (shape.memory_len() * size_of::<f32>());
            let mut layers: Vec<_> = (0..layers).map(|_| values(shape.memory_len())).collect();
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                let start = Instant::now();
                for memory in &mut layers {
                    let inputs = DeltaInputs {
                        qkv: ViewMut::new(&mut qkv, tokens, shape.channels()),
                        a: View::new(&a, tokens, value_heads),
                        b: View::new(&b, tokens, value_heads),
                        neg_a: &neg_a,
                        dt_bias: &dt_bias,
                    };
                    let out = ViewMut::new(&mut out, tokens, value_heads * v_dim);
                    self.device.delta_net(shape, inputs, memory, out).expect("the host");
                }
                let seconds = start.elapsed().as_secs_f64() / layers.len() as f64;
                let memory_bytes = tokens as f64 * shape.memory_len() as f64 * 8.0;
                rounds.push([seconds * 1e6, memory_bytes / seconds / 1e9]);
            }
            let [us, rate] = medians(&rounds);
            println!("{name}: {us:.1} us, {rate:.1} GB/s of memory per token");
        }
    }

    fn attention(&self) {
        let shape = |heads, kv_heads, k_dim, v_dim| {
            let window = None;
            AttentionShape { heads, kv_heads, k_dim, v_dim, scale: 0.09, window }
        };
        let cases = [
            ("attention of 64,", shape(8, 4, 64, 64)),
            ("attention of 128,", shape(32, 4, 128, 128)),
            ("attention of 256,", shape(16, 2, 256, 256)),
            ("latent attention,", shape(20, 1, 576, 512)),
        ];
        for (name, shape) in cases {
            for (rows, position) in [(1_usize, 4095_usize), (128, 1024)] {
                for format in KvFormat::ALL {
                    self.attention_case(name, (shape, *format), (rows, position));
                }
            }
        }
    }

    fn attention_case(
        &self,
        name: &str,
        (shape, format): (AttentionShape, KvFormat),
        (rows, position): (usize, usize),
    ) {
        let name = format!("{name} {rows} rows at {position} {format}");
        if self.skips(&name) {
            return;
        }
        let AttentionShape { heads, kv_heads, k_dim, v_dim, .. } = shape;
        let blocks = (position + rows).div_ceil(64);
        let keys = HostKv::rounded(format, &values(blocks * kv_heads * 64 * k_dim));
        let own_values = (v_dim == k_dim).then_some(&keys);
        let table: Vec<u32> = (0..blocks as u32).collect();
        let kv = KvView { keys: &keys, values: own_values, table: &table, sinks: None };
        let q = values(rows * heads * k_dim);
        let mut out = HostBuf::zeroed(rows * heads * v_dim);
        let seen: usize = (0..rows).map(|row| position + row + 1).sum();
        let operations = (seen * heads * (k_dim + v_dim) * 2) as f64;
        let mut rounds = Vec::new();
        for _ in 0..5 * ROUNDS {
            let start = Instant::now();
            let q = View::new(&q, rows, heads * k_dim);
            let view = ViewMut::new(&mut out, rows, heads * v_dim);
            self.device.attention(shape, q, &kv, position as u32, view).expect("the host");
            let seconds = start.elapsed().as_secs_f64();
            rounds.push([seconds * 1e6, operations / seconds / 1e9]);
        }
        let [us, rate] = medians(&rounds);
        let best = rounds.iter().map(|round| round[1]).fold(0.0, f64::max);
        println!("{name}: {us:.0} us, {rate:.0} GFLOP/s; best {best:.0}");
    }

    /// Attention of a written token: keys and values of many layers in turns, which no cache holds.
    fn written(&self) {
        for (heads, kv_heads, dim) in [(16, 2, 256), (32, 4, 128)] {
            for tokens in [1024, 8192] {
                let (k_dim, v_dim) = (dim, dim);
                let shape =
                    AttentionShape { heads, kv_heads, k_dim, v_dim, scale: 0.06, window: None };
                for format in KvFormat::ALL {
                    self.written_case((shape, *format), tokens);
                }
            }
        }
    }

    fn written_case(&self, (shape, format): (AttentionShape, KvFormat), tokens: usize) {
        let AttentionShape { heads, kv_heads, k_dim, .. } = shape;
        let name = format!("written attention {heads} heads of {k_dim} at {tokens} {format}");
        if self.skips(&name) {
            return;
        }
        let layer_len = tokens * kv_heads * k_dim;
        let set = weights(quant::by_name("f32").expect("it is in the table"), SET_BYTES);
        let token_bytes = 2 * format.value_bytes();
        let (layers, blocks) = (SET_BYTES / token_bytes / layer_len, (tokens / 64) as u32);
        let pools = [0, 1].map(|_| HostKv::rounded(format, &values(layers * layer_len)));
        let q = values(heads * k_dim);
        let mut out = HostBuf::zeroed(heads * k_dim);
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let probe = read_probe(&set, self.device.threads());
            let start = Instant::now();
            for layer in 0..layers as u32 {
                let table: Vec<u32> = (layer * blocks..(layer + 1) * blocks).collect();
                let kv =
                    KvView { keys: &pools[0], values: Some(&pools[1]), table: &table, sinks: None };
                let q = View::new(&q, 1, heads * k_dim);
                let out = ViewMut::new(&mut out, 1, heads * k_dim);
                self.device.attention(shape, q, &kv, tokens as u32 - 1, out).expect("the host");
            }
            let bytes = (layers * layer_len * token_bytes) as f64;
            let rate = bytes / start.elapsed().as_secs_f64() / 1e9;
            rounds.push([rate, probe, rate / probe]);
        }
        let [rate, probe, share] = medians(&rounds);
        println!("{name}: {rate:.1} GB/s, memory {probe:.1}, ratio {share:.2}");
    }

    /// A matrix for every head: the two of a latent-attention layer.
    fn heads(&self) {
        for (rows, cols) in [(512, 192), (256, 512)] {
            for tokens in [1, 128] {
                let (heads, format) = (20, quant::by_name("bf16").expect("it is in the table"));
                let name = format!("heads {heads} x [{rows}, {cols}] x {tokens}");
                if self.skips(&name) {
                    continue;
                }
                let shape = MatrixShape { rows: heads * rows, cols, format };
                let set = weights(format, shape.bytes());
                let x = values(tokens * heads * cols);
                let mut acts = self.device.acts(tokens * heads, cols).expect("memory");
                self.device.prepare(View::new(&x, tokens * heads, cols), &mut acts).expect("host");
                let mut y = HostBuf::zeroed(tokens * heads * rows);
                let operations = 2.0 * (heads * rows * cols * tokens) as f64;
                let mut rounds = Vec::new();
                for _ in 0..3 * ROUNDS {
                    let start = Instant::now();
                    let w = QMatrix { bytes: &set[..], shape, arranged: false };
                    let y = ViewMut::new(&mut y, tokens * heads, rows);
                    self.device.matmul_heads(w, heads, &acts, y).expect("the host");
                    let seconds = start.elapsed().as_secs_f64();
                    rounds.push([seconds * 1e6, operations / seconds / 1e9]);
                }
                let [us, rate] = medians(&rounds);
                println!("{name}: {us:.0} us, {rate:.0} GFLOP/s");
            }
        }
    }
}

/// Copies of 64 K weights of noise.
fn weights(format: &'static QuantFormat, len: usize) -> WeightBytes {
    let cols = 64 * 1024;
    let pattern = noise_weights(MatrixShape { rows: 1, cols, format }, 1);
    let mut set = WeightBytes::zeroed(len);
    for chunk in set.chunks_mut(pattern.len()) {
        chunk.copy_from_slice(&pattern[..chunk.len()]);
    }
    set
}

fn values(len: usize) -> HostBuf {
    let all: Vec<f32> = (0..len).map(|i| ((i * 7919 % 1009) as f32 / 504.5 - 1.0) * 0.5).collect();
    all.into()
}

fn medians<const N: usize>(rounds: &[[f64; N]]) -> [f64; N] {
    std::array::from_fn(|column| {
        let mut values: Vec<f64> = rounds.iter().map(|round| round[column]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    })
}

/// The best rate and the best limit of all rounds, which need not be of the same one.
fn best(rounds: &[[f64; 3]]) -> [f64; 2] {
    [0, 1].map(|column| rounds.iter().map(|round| round[column]).fold(0.0, f64::max))
}

/// Runs `work(part)` on every thread and gives the seconds they took together.
fn on_threads(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let work = &work;
    let start = Instant::now();
    thread::scope(|scope| {
        for part in 1..threads {
            scope.spawn(move || work(part));
        }
        work(0);
    });
    start.elapsed().as_secs_f64()
}

/// GB/s at which `threads` threads read `set`, each its own half, third, …
fn read_probe(set: &[u8], threads: usize) -> f64 {
    let part_bytes = set.len() / threads / 512 * 512;
    let seconds = on_threads(threads, |part| {
        black_box(probe::read(Level::best(), &set[part * part_bytes..][..part_bytes]));
    });
    (part_bytes * threads) as f64 / seconds / 1e9
}

/// GFLOP/s of multiply-adds that never leave the registers, as the best instruction set has them.
fn fma_probe(threads: usize) -> f64 {
    let repeats = 2_000_000;
    let seconds = on_threads(threads, |_| {
        black_box(probe::multiply_add(Level::best(), repeats));
    });
    (probe::MULTIPLY_ADD_OPERATIONS * repeats * threads) as f64 / seconds / 1e9
}
