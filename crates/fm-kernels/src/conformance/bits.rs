//! Invariant 2: what a row gives does not depend on what stands beside it. Bit for bit.

use fm_format::quant::FORMATS;

use crate::backend::{
    AttentionShape, Backend, DeltaShape, DeviceResult, ExpertRow, HeadOrder, View, ViewMut,
};

use super::{
    Case, Weights, noise, read_all,
    sequence::{Attention, Convolution, DeltaNet, KeptIn, Values},
};

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Products of the chosen rows of one matrix of activations, all in one operation.
fn products<B: Backend>(
    device: &B,
    weights: &Weights<B>,
    acts: &B::Acts,
    chosen: &[u32],
) -> DeviceResult<Vec<f32>> {
    let rows = weights.shape.rows;
    let chosen: Vec<ExpertRow> =
        chosen.iter().map(|row| ExpertRow { row: *row, target: 0, weight: 1.0 }).collect();
    let mut y = device.alloc(chosen.len() * rows)?;
    let view = ViewMut::new(&mut y, chosen.len(), rows);
    device.matmul_rows(weights.matrix(), acts, &chosen, view)?;
    read_all(device, &y, chosen.len() * rows)
}

/// Matrix products: every row alone, in batches of 2 to 100, at every position, in every format.
///
/// # Panics
/// If one bit differs.
pub fn a_row_does_not_see_its_neighbours<B: Backend>(devices: &[B]) {
    devices.iter().for_each(rows_of);
}

fn rows_of<B: Backend>(device: &B) {
    // More than meet decoded weights, or panels, in one pass.
    let tokens = 100_u32;
    for format in &FORMATS {
        // More columns than are decoded at a time; groups of rows that are not full; whole panels.
        for (rows, cols) in [(9, 1536), (67, 512), (64, 768)] {
            let check = || -> DeviceResult {
                let weights = Weights::noise(device, format, (rows, cols), 1)?;
                let x = device.upload(&noise(2, tokens as usize * cols))?;
                let mut acts = device.acts(tokens as usize, cols)?;
                device.prepare(View::new(&x, tokens as usize, cols), &mut acts)?;
                let mut alone = Vec::new();
                for token in 0..tokens {
                    alone.extend(products(device, &weights, &acts, &[token])?);
                }
                for (first, count) in
                    [(0, 2), (1, 3), (5, 4), (3, 5), (2, 7), (30, 13), (9, 49), (0, 100)]
                {
                    let chosen: Vec<u32> = (first..first + count).collect();
                    let batch = products(device, &weights, &acts, &chosen)?;
                    let want = &alone[first as usize * rows..][..count as usize * rows];
                    assert!(
                        bits(&batch) == bits(want),
                        "{format:?}: {count} rows from {first} on, {device:?}"
                    );
                }
                Ok(())
            };
            check().expect("the device runs");
        }
    }
}

/// Attention, convolution and delta net: a prompt in one piece, token by token, and in between.
///
/// # Panics
/// If one bit differs.
pub fn a_prompt_may_be_chunked_anywhere<B: Backend>(devices: &[B]) {
    fn check<B: Backend, C: Case>(devices: &[B], case: impl Fn(Vec<usize>) -> C) {
        for chunks in [vec![1; 70], vec![3, 64, 3], vec![69, 1], vec![7; 10]] {
            case(chunks).check_bits(devices, &case(vec![70]));
        }
    }
    let (k_dim, v_dim, scale) = (40, 24, 0.3);
    let shape = AttentionShape { heads: 6, kv_heads: 3, k_dim, v_dim, scale, window: None };
    let position = 37;
    for (values, kept) in
        [(Values::Own, KeptIn::F32), (Values::InKeys, KeptIn::F32), (Values::Own, KeptIn::F16)]
    {
        check(devices, |chunks| Attention { shape, position, chunks, values, sinks: false, kept });
    }
    for window in [1, 5, 64, 70] {
        let shape = AttentionShape { window: Some(window), ..shape };
        let (values, kept) = (Values::Own, KeptIn::F32);
        check(devices, |chunks| Attention { shape, position, chunks, values, sinks: true, kept });
    }
    check(devices, |chunks| Convolution { taps: 4, channels: 53, chunks });
    let (key_heads, value_heads, v_dim, head_order) = (2, 6, 17, HeadOrder::Grouped);
    for k_dim in [24, 128, 200] {
        let shape = DeltaShape { key_heads, value_heads, head_order, k_dim, v_dim, conv_taps: 4 };
        check(devices, |chunks| DeltaNet { shape, chunks });
    }
}
