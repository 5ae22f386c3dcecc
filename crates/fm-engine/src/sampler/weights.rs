//! What is done to every logit of a vocabulary, of 248 thousand at each token: loops that a compiler
//! makes vectors of, on any machine. They count instead of calling adapters and closures, which this crate,
//! compiled in several pieces, would call for every number.

#![expect(clippy::needless_range_loop, reason = "see above")]

/// Sums and maxima are taken in so many lanes, as a single one waits for every operation.
const LANES: usize = 16;

/// Weights that are added up before any of them is looked at.
const CHUNK: usize = 256;

/// The largest of some numbers.
pub(crate) fn largest(values: &[f32]) -> f32 {
    let (rows, rest) = values.as_chunks();
    let mut found = f32::NEG_INFINITY;
    for lane in largest_lanes(rows) {
        found = found.max(lane);
    }
    for value in rest {
        found = found.max(*value);
    }
    found
}

fn largest_lanes(rows: &[[f32; LANES]]) -> [f32; LANES] {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for row in rows {
        for i in 0..LANES {
            lanes[i] = if row[i] > lanes[i] { row[i] } else { lanes[i] };
        }
    }
    lanes
}

/// The first position of a value, if it is there.
pub(crate) fn position_of(values: &[f32], wanted: f32) -> Option<usize> {
    for (at, chunk) in values.chunks(CHUNK).enumerate() {
        let mut equal = 0;
        for value in chunk {
            equal += u32::from(*value == wanted);
        }
        if equal > 0 {
            return chunk.iter().position(|value| *value == wanted).map(|i| at * CHUNK + i);
        }
    }
    None
}

/// Whether all are numbers and have bounds.
pub(crate) fn are_finite(values: &[f32]) -> bool {
    let mut broken = 0;
    for value in values {
        broken |= u32::from(!value.is_finite());
    }
    broken == 0
}

/// A number that at least `count` of the values reach, and in a large vocabulary few more: what is below is none
/// of the `count` largest. `maxima` is room.
pub(crate) fn floor_of_largest(values: &[f32], count: usize, maxima: &mut Vec<f32>) -> f32 {
    /// Values of which one is looked at.
    const GROUP: usize = 64;
    maxima.clear();
    let (rows, _) = values.as_chunks::<LANES>();
    for rows in rows.chunks_exact(GROUP) {
        maxima.extend_from_slice(&largest_lanes(rows));
    }
    // The largest are seldom in one group, unless there are about as many groups as they.
    if count == 0 || maxima.len() < 2 * count {
        return f32::NEG_INFINITY;
    }
    *maxima.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1
}

/// Puts the positions and values of all that reach a floor into `found`, in their order.
pub(crate) fn find_from(values: &[f32], floor: f32, found: &mut Vec<(u32, f32)>) {
    found.clear();
    for (at, row) in values.chunks(LANES).enumerate() {
        let mut reach = 0;
        for value in row {
            reach += u32::from(*value >= floor);
        }
        if reach > 0 {
            for (i, value) in row.iter().enumerate() {
                if *value >= floor {
                    found.push(((at * LANES + i) as u32, *value));
                }
            }
        }
    }
}

/// `e^x` of numbers up to 0, with an error of two units in the last place, and 0 below -87. The same on every
/// machine, unlike that of its library.
///
/// Splits `x = n · ln 2 + r` with `|r| ≤ ln 2 / 2` and evaluates a polynomial at `r`. Source: Cephes `expf`.
#[inline]
pub(crate) fn exp(x: f32) -> f32 {
    const LEAST: f32 = -87.0;
    /// What is added to this has no digits behind the point left, and its whole digits in the last bits.
    const WHOLE: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let inside = if x < LEAST { LEAST } else { x };
    let whole = inside * std::f32::consts::LOG2_E + WHOLE;
    let n = whole - WHOLE;
    let r = inside - n * LN_2_HIGH - n * LN_2_LOW;
    let mut tail = COEFFICIENTS[0];
    for i in 1..COEFFICIENTS.len() {
        tail = tail * r + COEFFICIENTS[i];
    }
    let power = f32::from_bits(whole.to_bits().wrapping_add(127) << 23);
    let value = (r * r * tail + r + 1.0) * power;
    if x < LEAST { 0.0 } else { value }
}

/// Logits become probabilities times a constant: `e^(logit / temperature - peak)`.
pub(crate) fn weigh(logits: &mut [f32], temperature: f32, peak: f32) {
    for logit in logits {
        *logit = exp(*logit / temperature - peak);
    }
}

/// What `e^(logit - peak)` of all logits is together.
pub(crate) fn sum_of_exp(logits: &[f32], peak: f32) -> f64 {
    let mut weights = [0.0; CHUNK];
    let mut together = 0.0;
    for logits in logits.chunks(CHUNK) {
        let weights = &mut weights[..logits.len()];
        weights.copy_from_slice(logits);
        for weight in &mut *weights {
            *weight = exp(*weight - peak);
        }
        together += sum(weights);
    }
    together
}

/// What some numbers are together.
pub(crate) fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        for i in 0..LANES {
            lanes[i] += f64::from(row[i]);
        }
    }
    let mut together = 0.0;
    for lane in lanes {
        together += lane;
    }
    for value in rest {
        together += f64::from(*value);
    }
    together
}

/// The first weight at which `rest` is used up, if it ever is.
pub(crate) fn spend(weights: &[f32], mut rest: f64) -> Option<usize> {
    for (at, chunk) in weights.chunks(CHUNK).enumerate() {
        let together = sum(chunk);
        if rest >= together {
            rest -= together;
            continue;
        }
        for (i, weight) in chunk.iter().enumerate() {
            rest -= f64::from(*weight);
            if rest < 0.0 {
                return Some(at * CHUNK + i);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_the_library() {
        for i in 0..=870_000 {
            let x = i as f32 * -1e-4;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got / want - 1.0).abs() < 2.4e-7, "{x}: {got} {want}");
        }
        assert_eq!((exp(0.0), exp(-0.0)), (1.0, 1.0));
        assert_eq!((exp(-88.0), exp(f32::MIN), exp(f32::NEG_INFINITY)), (0.0, 0.0, 0.0));
    }

    /// Numbers in no order.
    fn noise(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i * 7_919 % 10_007) as f32 - 5_000.0).collect()
    }

    #[test]
    fn a_floor_keeps_all_of_the_largest_and_few_others() {
        let mut maxima = Vec::new();
        for len in [1, 100, 1_024, 5_000, 70_000, 70_001] {
            let values = noise(len);
            let mut sorted = values.clone();
            sorted.sort_unstable_by(|a, b| b.total_cmp(a));
            for count in [0, 1, 20, 500, len, len + 1] {
                let floor = floor_of_largest(&values, count, &mut maxima);
                assert!(count == 0 || floor <= sorted[count.min(len) - 1], "{count} of {len}");
                if len >= 70_000 && count == 20 {
                    assert!(values.iter().filter(|value| **value >= floor).count() < 60);
                }
            }
        }
    }

    #[test]
    fn what_reaches_a_floor_is_found_in_its_order() {
        for len in [0, 1, 15, 16, 17, 1_000] {
            let values = noise(len);
            let mut found = vec![(7, 7.0)];
            for floor in [f32::NEG_INFINITY, 0.0, 4_000.0, f32::INFINITY] {
                let all = (0..).zip(values.iter().copied());
                let want: Vec<(u32, f32)> = all.filter(|(_, value)| *value >= floor).collect();
                find_from(&values, floor, &mut found);
                assert_eq!(found, want);
            }
        }
    }

    #[test]
    fn lanes_leave_nothing_out() {
        for len in [0, 1, 15, 16, 17, 255, 256, 257, 1_000] {
            let values: Vec<f32> = (0..len).map(|i| 1.0 + (i % 7) as f32).collect();
            let want: f64 = values.iter().map(|value| f64::from(*value)).sum();
            assert_eq!(sum(&values), want);
            let peaks: Vec<f32> = values.iter().map(|value| value.ln()).collect();
            assert!((sum_of_exp(&peaks, 2.0) - want * (-2_f64).exp()).abs() < 1e-6 * want + 1e-12);
            for (at, value) in values.iter().enumerate() {
                let before: f64 = values[..at].iter().map(|value| f64::from(*value)).sum();
                assert_eq!(spend(&values, before), Some(at));
                assert_eq!(spend(&values, before + f64::from(*value) - 0.5), Some(at));
            }
            assert_eq!(spend(&values, want), None);
            let mut last = values;
            last.push(100.0);
            assert_eq!(largest(&last), 100.0);
        }
        assert_eq!(largest(&[]), f32::NEG_INFINITY);
    }

    #[test]
    fn values_are_where_they_first_stand() {
        for len in [1, 255, 256, 257, 1_000] {
            let mut values = vec![1.0; len];
            assert_eq!((position_of(&values, 2.0), position_of(&values, 1.0)), (None, Some(0)));
            values[len / 2..].fill(2.0);
            assert_eq!(position_of(&values, 2.0), Some(len / 2));
            for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                assert!(are_finite(&values));
                values[len - 1] = broken;
                assert!(!are_finite(&values));
                values[len - 1] = 2.0;
            }
        }
    }
}
