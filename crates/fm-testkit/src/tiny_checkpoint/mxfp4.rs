//! Mxfp4 packing: 32 values share a power of two, each is one of sixteen sizes.

/// What the eight codes without a sign stand for.
const SIZES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// Values that share a scale.
pub(super) const GROUP: usize = 32;

/// One packed tensor.
#[derive(Clone, Debug, Default)]
pub(super) struct Packed {
    /// Two codes a byte, the first in the lower half.
    pub(super) codes: Vec<u8>,
    /// One exponent, biased by 127, per group.
    pub(super) scales: Vec<u8>,
}

/// Packs groups of 32; what [`rounded`] gave is packed without a loss.
pub(super) fn pack(values: &[f32]) -> Packed {
    let mut packed = Packed::default();
    for group in values.chunks(GROUP) {
        let exponent = exponent(group);
        packed.scales.push((exponent + 127) as u8);
        let codes: Vec<u8> = group.iter().map(|value| code(value / exp2(exponent))).collect();
        packed.codes.extend(codes.chunks(2).map(|pair| pair[0] | pair[1] << 4));
    }
    packed
}

/// The nearest values that can be packed.
pub(super) fn rounded(values: &[f32]) -> Vec<f32> {
    let groups = values.chunks(GROUP).flat_map(|group| {
        let scale = exp2(exponent(group));
        group.iter().map(move |value| {
            let code = code(value / scale);
            let size = SIZES[usize::from(code & 7)] * scale;
            if code & 8 == 0 { size } else { -size }
        })
    });
    groups.collect()
}

/// The largest value becomes one of the two largest sizes, 4 or 6.
fn exponent(group: &[f32]) -> i32 {
    let largest = group.iter().fold(f32::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
    largest.log2().floor() as i32 - 2
}

fn exp2(exponent: i32) -> f32 {
    (exponent as f32).exp2()
}

fn code(value: f32) -> u8 {
    let distance = |code: &u8| (SIZES[usize::from(*code)] - value.abs()).abs();
    let nearest = (0..8).min_by(|a, b| distance(a).total_cmp(&distance(b)));
    nearest.expect("there are eight codes") | if value < 0.0 { 8 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;

    #[test]
    fn rounded_values_are_near_and_stay_as_they_are() {
        let values = Noise::new(3).normals(64 * GROUP, 0.3);
        let once = rounded(&values);
        for (group, once) in values.chunks(GROUP).zip(once.chunks(GROUP)) {
            let largest = group.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            for (value, once) in group.iter().zip(once) {
                assert!((value - once).abs() <= largest / 4.0, "{value} {once}");
            }
        }
        assert_eq!(rounded(&once), once);
        assert_eq!(pack(&once).codes.len(), 32 * GROUP);
    }
}
