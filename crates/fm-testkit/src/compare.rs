//! The one way in which tests measure how far two runs are apart.

/// Largest `|a[i] − b[i]|`; infinite if any of them is not a number, so that a NaN never passes
/// a tolerance.
///
/// # Panics
/// If the lengths differ.
pub fn max_abs_diff<A, B>(a: &[A], b: &[B]) -> f64
where
    A: Copy + Into<f64>,
    B: Copy + Into<f64>,
{
    assert_eq!(a.len(), b.len(), "only runs of one shape can be compared");
    let diffs = a.iter().zip(b).map(|(&a, &b)| (a.into() - b.into()).abs());
    diffs.map(|diff| if diff.is_nan() { f64::INFINITY } else { diff }).fold(0.0, f64::max)
}

/// [`max_abs_diff`] of two tables, row by row.
///
/// # Panics
/// If the shapes differ.
pub fn max_abs_diff_rows<A, B>(a: &[Vec<A>], b: &[Vec<B>]) -> f64
where
    A: Copy + Into<f64>,
    B: Copy + Into<f64>,
{
    assert_eq!(a.len(), b.len(), "only tables of one height can be compared");
    a.iter().zip(b).map(|(a, b)| max_abs_diff(a, b)).fold(0.0, f64::max)
}

/// Standard deviation of all numbers in a table.
pub fn std_dev(rows: &[Vec<f64>]) -> f64 {
    let count = rows.iter().map(Vec::len).sum::<usize>() as f64;
    let mean = rows.iter().flatten().sum::<f64>() / count;
    let variance = rows.iter().flatten().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    variance.sqrt()
}

/// Index of the largest number, the first one of equals.
///
/// # Panics
/// If there are none.
pub fn argmax(numbers: &[f64]) -> usize {
    assert!(!numbers.is_empty(), "nothing has no largest number");
    (1..numbers.len()).fold(0, |best, i| if numbers[i] > numbers[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_difference_counts_in_either_direction() {
        assert_eq!(max_abs_diff(&[1.0_f32, 2.0], &[1.5_f64, -1.0]), 3.0);
    }

    #[test]
    fn a_nan_is_infinitely_far_from_everything() {
        assert_eq!(max_abs_diff(&[f32::NAN, 0.0], &[f32::NAN, 0.0]), f64::INFINITY);
    }

    #[test]
    fn argmax_takes_the_first_of_equals() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), 1);
    }
}
