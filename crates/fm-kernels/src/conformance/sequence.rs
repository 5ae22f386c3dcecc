//! Operations along a session: attention over its blocks, convolution and delta net over its past.

use half::f16;

use crate::{
    backend::{
        AttentionShape, Backend, DeltaInputs, DeltaShape, DeviceResult, HeadOrder, KV_BLOCK_TOKENS,
        KvFormat, KvOverflow, KvView, View, ViewMut,
    },
    tolerance,
};

use super::{Case, noise, read_all};

/// Causal attention of the rows of a session whose first `position` tokens came before.
#[derive(Clone, Debug)]
pub(super) struct Attention {
    pub(super) shape: AttentionShape,
    pub(super) position: usize,
    /// How many rows each call brings, in order.
    pub(super) chunks: Vec<usize>,
    pub(super) values: Values,
    /// Whether every head has one more score.
    pub(super) sinks: bool,
    /// What keys and values are kept in.
    pub(super) kept: KeptIn,
}

/// What keys and values are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptIn {
    F32,
    F16,
    /// In f32, where they are what [`KeptIn::F16`] rounds them to.
    Rounded,
}

impl KeptIn {
    fn format(self) -> KvFormat {
        if self == Self::F16 { KvFormat::F16 } else { KvFormat::F32 }
    }
}

/// Where values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// In a pool of their own.
    Own,
    /// The beginnings of the keys.
    InKeys,
    /// In a pool of their own, where they are what [`Values::InKeys`] finds.
    CopiedFromKeys,
}

impl Attention {
    /// Writes keys of rows behind `position`, and their values.
    fn write<B: Backend>(
        &self,
        device: &B,
        [keys, values]: [&mut B::Kv; 2],
        (position, rows): (usize, usize),
        table: &[u32],
    ) -> DeviceResult {
        let AttentionShape { kv_heads, k_dim, v_dim, .. } = self.shape;
        let heads = (position + rows) * kv_heads;
        let of_keys = self.given(3, heads * k_dim);
        let of_values = if self.values == Values::CopiedFromKeys {
            of_keys.chunks_exact(k_dim).flat_map(|key| &key[..v_dim]).copied().collect()
        } else {
            self.given(4, heads * v_dim)
        };
        for (pool, given, dim) in [(keys, of_keys, k_dim), (values, of_values, v_dim)] {
            let overflow = write(device, pool, (&given, dim), (position, rows), table)?;
            assert_eq!(overflow, None, "noise is small");
        }
        Ok(())
    }

    fn given(&self, seed: u64, len: usize) -> Vec<f32> {
        let mut values = noise(seed, len);
        if self.kept == KeptIn::Rounded {
            values.iter_mut().for_each(|value| *value = f16::from_f32(*value).to_f32());
        }
        values
    }
}

/// Keys or values for [`Backend::kv_write`], whose rows from `position` on are written.
fn write<B: Backend>(
    device: &B,
    pool: &mut B::Kv,
    (values, dim): (&[f32], usize),
    (position, rows): (usize, usize),
    table: &[u32],
) -> DeviceResult<Option<KvOverflow>> {
    if rows == 0 {
        return Ok(None);
    }
    let x = device.upload(values)?;
    let x = View::new(&x, position + rows, values.len() / (position + rows)).rows(position, rows);
    device.kv_write(x, position as u32, table, dim, pool)
}

/// A pool in which something stood before.
fn used_pool<B: Backend>(
    device: &B,
    format: KvFormat,
    (seed, len): (u64, usize),
) -> DeviceResult<B::Kv> {
    let mut pool = device.kv_alloc(format, len)?;
    let values = noise(seed, len);
    let bytes: Vec<u8> = match format {
        KvFormat::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        KvFormat::F16 => {
            values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect()
        }
    };
    device.kv_restore(&bytes, &mut pool, 0)?;
    Ok(pool)
}

impl Case for Attention {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let AttentionShape { heads, kv_heads, k_dim, v_dim, .. } = self.shape;
        let total = self.position + self.chunks.iter().sum::<usize>();
        let blocks = total.div_ceil(KV_BLOCK_TOKENS);
        // Blocks lie in descending order, so that a block's number is not its position.
        let table: Vec<u32> = (0..blocks as u32).rev().collect();
        let pool_len = |dim| blocks * kv_heads * KV_BLOCK_TOKENS * dim;
        let format = self.kept.format();
        let mut keys = used_pool(device, format, (1, pool_len(k_dim)))?;
        let mut values = used_pool(device, format, (2, pool_len(v_dim)))?;
        self.write(device, [&mut keys, &mut values], (0, self.position), &table)?;
        let sinks = device.upload(&noise(6, heads))?;
        let q = device.upload(&noise(5, (total - self.position) * (heads * k_dim + 7)))?;
        let mut out = device.alloc((total - self.position) * heads * v_dim)?;
        let mut done = 0;
        for rows in &self.chunks {
            let at = (self.position + done, *rows);
            self.write(device, [&mut keys, &mut values], at, &table)?;
            let values = Some(&values).filter(|_| self.values != Values::InKeys);
            let sinks = Some(&sinks).filter(|_| self.sinks);
            let kv = KvView { keys: &keys, values, table: &table, sinks };
            let all = total - self.position;
            let q = View::new(&q, all, heads * k_dim + 7).columns(3, heads * k_dim);
            let q = q.rows(done, *rows);
            let view = ViewMut::new(&mut out, all, heads * v_dim).rows(done, *rows);
            device.attention(self.shape, q, &kv, at.0 as u32, view)?;
            done += rows;
        }
        read_all(device, &out, done * heads * v_dim)
    }
}

/// [`Backend::kv_write`] and [`Backend::attention`], within and across blocks, with values of their
/// own and inside the keys, with sinks and in windows, in every [`KvFormat`].
///
/// # Panics
/// If values inside the keys give other bits than the same ones elsewhere, or rounded ones other bits than
/// what they are rounded to.
pub fn attention<B: Backend>(devices: &[B]) {
    for (k_dim, v_dim) in [(40, 40), (48, 48), (16, 16), (128, 64), (7, 130)] {
        for (position, rows) in [(0, 1), (0, 5), (60, 9), (63, 1), (64, 1), (190, 70)] {
            let scale = 4.0 / (k_dim as f32).sqrt();
            let (heads, kv_heads, window) = (6, 3, None);
            let shape = AttentionShape { heads, kv_heads, k_dim, v_dim, scale, window };
            let chunks = vec![rows];
            let (values, sinks, kept) = (Values::Own, false, KeptIn::F32);
            let case = Attention { shape, position, chunks, values, sinks, kept };
            case.check(devices, tolerance::CHAINED_F32);
            let [halves, rounded] =
                [KeptIn::F16, KeptIn::Rounded].map(|kept| Attention { kept, ..case.clone() });
            halves.check_bits(devices, &rounded);
            for window in [None, Some(1), Some(3), Some(64), Some(100)] {
                let shape = AttentionShape { window, ..shape };
                let case = Attention { shape, sinks: true, ..case.clone() };
                case.check(devices, tolerance::CHAINED_F32);
            }
            if v_dim <= k_dim {
                let case = Attention { values: Values::InKeys, ..case };
                case.check(devices, tolerance::CHAINED_F32);
                for kept in [KeptIn::F32, KeptIn::F16] {
                    let case = Attention { kept, ..case.clone() };
                    let copied = Attention { values: Values::CopiedFromKeys, ..case.clone() };
                    case.check_bits(devices, &copied);
                }
            }
        }
    }
    // Groups that do not divide into those that run side by side, larger ones, and more heads than a
    // task keeps: a row's bits do not depend on those that come with it.
    for (heads, kv_heads) in [(15, 3), (8, 1), (4, 4), (300, 1)] {
        let (k_dim, v_dim, scale, window) = (40, 24, 0.6, Some(70));
        let shape = AttentionShape { heads, kv_heads, k_dim, v_dim, scale, window };
        let (values, sinks, chunks) = (Values::Own, true, vec![9]);
        for kept in [KeptIn::F32, KeptIn::F16] {
            let chunks = chunks.clone();
            let case = Attention { shape, position: 61, chunks, values, sinks, kept };
            case.check(devices, tolerance::CHAINED_F32);
            let alone = Attention { chunks: vec![1; 9], ..case.clone() };
            case.check_bits(devices, &alone);
        }
    }
}

/// [`Backend::kv_write`] rounds to the format, says what is beyond it, and [`Backend::kv_read`] gives what
/// is kept.
///
/// # Panics
/// If it does not.
pub fn kv_formats<B: Backend>(devices: &[B]) {
    devices.iter().for_each(kv_formats_of);
}

fn kv_formats_of<B: Backend>(device: &B) {
    let mut values = noise(1, 40);
    values.extend([65504.0, -65519.9, 1e-8, -0.0, 6e-5, f32::INFINITY, 1.0 + f32::EPSILON, 3.0]);
    let kept = |format, values: &[f32]| -> DeviceResult<(Vec<u8>, Option<KvOverflow>)> {
        let mut pool = used_pool(device, format, (2, 2 * KV_BLOCK_TOKENS * 24))?;
        // Two rows of two heads of twelve, in the second block.
        let overflow = write(device, &mut pool, (values, 12), (0, 2), &[1])?;
        let mut bytes = vec![0; 12 * format.value_bytes()];
        let mut all = Vec::new();
        for (row, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let first = ((2 + head) * KV_BLOCK_TOKENS + row) * 12;
            device.kv_read(&pool, first, &mut bytes)?;
            all.extend_from_slice(&bytes);
        }
        Ok((all, overflow))
    };
    let exact = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let rounded = |values: &[f32]| {
        values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect()
    };
    let check = |values: &[f32], halves: Vec<u8>, overflow: Option<KvOverflow>| {
        assert!(kept(KvFormat::F32, values).expect("the device runs") == (exact(values), None));
        assert!(kept(KvFormat::F16, values).expect("the device runs") == (halves, overflow));
    };
    check(&values, rounded(&values), None);
    // What is beyond f16 is said, the first of it, and cut off.
    let cut = [&values[..46], &[65504.0, -65504.0]].concat();
    values[46..].copy_from_slice(&[1e6, -65520.0]);
    check(&values, rounded(&cut), Some(KvOverflow { value: 1e6, format: KvFormat::F16 }));
}

/// [`Backend::kv_copy_block`] copies one block and nothing else.
///
/// # Panics
/// If it does not.
pub fn kv_copy_block<B: Backend>(devices: &[B]) {
    devices.iter().for_each(kv_copy_block_of);
}

fn kv_copy_block_of<B: Backend>(device: &B) {
    for format in KvFormat::ALL {
        let mut pool = used_pool(device, *format, (1, 5 * 24)).expect("the device has memory");
        let bytes = format.value_bytes();
        let (mut want, mut found) = (vec![0; 120 * bytes], vec![0; 120 * bytes]);
        device.kv_read(&pool, 0, &mut want).expect("the device runs");
        device.kv_copy_block(3, 1, 24, &mut pool).expect("the device runs");
        want.copy_within(72 * bytes..96 * bytes, 24 * bytes);
        device.kv_read(&pool, 0, &mut found).expect("the device runs");
        assert!(found == want, "{format}");
    }
}

/// The causal convolution; its result and the history it leaves.
#[derive(Clone, Debug)]
pub(super) struct Convolution {
    pub(super) taps: usize,
    pub(super) channels: usize,
    pub(super) chunks: Vec<usize>,
}

impl Case for Convolution {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let &Self { taps, channels, .. } = self;
        let rows: usize = self.chunks.iter().sum();
        let weight = device.upload(&noise(1, taps * channels))?;
        let mut history = device.upload(&noise(2, (taps - 1) * channels))?;
        let mut x = device.upload(&noise(3, rows * (channels + 3)))?;
        let mut done = 0;
        for chunk in &self.chunks {
            let view = ViewMut::new(&mut x, rows, channels + 3).columns(1, channels);
            device.causal_conv(&weight, &mut history, view.rows(done, *chunk))?;
            done += chunk;
        }
        let mut all = read_all(device, &x, rows * (channels + 3))?;
        all.extend(read_all(device, &history, (taps - 1) * channels)?);
        Ok(all)
    }
}

/// [`Backend::causal_conv`] with one to four taps.
pub fn causal_conv<B: Backend>(devices: &[B]) {
    for taps in 1..=4 {
        for (channels, rows) in [(5, 1), (16, 3), (77, 9), (1000, 2), (1000, 17), (4100, 1)] {
            let case = Convolution { taps, channels, chunks: vec![rows] };
            case.check(devices, tolerance::ELEMENTWISE_F32);
        }
    }
}

/// The gated delta rule; its result and the memory it leaves.
#[derive(Clone, Debug)]
pub(super) struct DeltaNet {
    pub(super) shape: DeltaShape,
    pub(super) chunks: Vec<usize>,
}

impl Case for DeltaNet {
    fn run<B: Backend>(&self, device: &B) -> DeviceResult<Vec<f32>> {
        let Self { shape, chunks } = self;
        let (rows, heads) = (chunks.iter().sum(), shape.value_heads);
        let (channels, out_cols) = (shape.channels(), heads * shape.v_dim);
        let mut qkv = device.upload(&noise(1, rows * channels))?;
        let a = device.upload(&noise(2, rows * heads))?;
        let b = device.upload(&noise(3, rows * heads))?;
        let neg_a: Vec<f32> = noise(4, heads).iter().map(|x| -(1.0 + x)).collect();
        let (neg_a, dt_bias) = (device.upload(&neg_a)?, device.upload(&noise(5, heads))?);
        let mut memory = device.upload(&noise(6, shape.memory_len()))?;
        let mut out = device.alloc(rows * out_cols)?;
        let mut done = 0;
        for chunk in chunks {
            let inputs = DeltaInputs {
                qkv: ViewMut::new(&mut qkv, rows, channels).rows(done, *chunk),
                a: View::new(&a, rows, heads).rows(done, *chunk),
                b: View::new(&b, rows, heads).rows(done, *chunk),
                neg_a: &neg_a,
                dt_bias: &dt_bias,
            };
            let view = ViewMut::new(&mut out, rows, out_cols).rows(done, *chunk);
            device.delta_net(*shape, inputs, &mut memory, view)?;
            done += chunk;
        }
        let mut all = read_all(device, &out, rows * out_cols)?;
        all.extend(read_all(device, &memory, shape.memory_len())?);
        Ok(all)
    }
}

/// [`Backend::delta_net`] with `k_dim` unequal `v_dim`, and several value heads to a key head.
pub fn delta_net<B: Backend>(devices: &[B]) {
    for (key_heads, value_heads, k_dim, v_dim) in [
        (2, 6, 16, 24),
        (1, 3, 40, 7),
        (2, 2, 5, 3),
        (1, 2, 128, 128),
        (1, 1, 128, 5),
        (1, 2, 200, 9),
    ] {
        for (rows, head_order) in [
            (1, HeadOrder::Grouped),
            (2, HeadOrder::Tiled),
            (9, HeadOrder::Grouped),
            (33, HeadOrder::Tiled),
        ] {
            let conv_taps = 4;
            let shape = DeltaShape { key_heads, value_heads, head_order, k_dim, v_dim, conv_taps };
            DeltaNet { shape, chunks: vec![rows] }.check(devices, tolerance::CHAINED_F32);
        }
    }
}
