//! Gated delta rule: the recurrence of linear-attention layers.

/// Operands of [`delta_step`] for one value head.
///
/// | field   | shape              | meaning                                  |
/// |---------|--------------------|------------------------------------------|
/// | `query` | `[k_dim]`          | L2-normalised, already scaled            |
/// | `key`   | `[k_dim]`          | L2-normalised                            |
/// | `value` | `[v_dim]`          |                                          |
/// | `decay` | scalar in `(0, 1]` | share of the old memory that is kept     |
/// | `beta`  | scalar in `[0, 1]` | strength of the write                    |
#[derive(Clone, Copy, Debug)]
pub struct DeltaStep<'a> {
    /// `[k_dim]`.
    pub query: &'a [f32],
    /// `[k_dim]`.
    pub key: &'a [f32],
    /// `[v_dim]`.
    pub value: &'a [f32],
    /// In `(0, 1]`.
    pub decay: f32,
    /// In `[0, 1]`.
    pub beta: f32,
}

/// Advances one head's memory by one token and reads it back.
///
/// ```text
/// S ← decay · S                     forget
/// u ← beta · (value − S · key)      what the memory got wrong
/// S ← S + u ⊗ key                   write
/// out ← S · query                   read
/// ```
///
/// `state` is `[v_dim, k_dim]`, row-major, updated in place; `out` is `[v_dim]`.
/// Accumulates in f32. Cost: 3 · `v_dim` · `k_dim` multiply-adds, no allocation.
///
/// Source: Yang, Kautz, Hatamizadeh, *Gated Delta Networks*, 2024, arXiv:2412.06464.
///
/// # Panics
/// If `state.len() != out.len() * key.len()`; shapes are fixed when a model is loaded,
/// so a mismatch here is a bug in the caller and not an input error.
pub fn delta_step(step: DeltaStep<'_>, state: &mut [f32], out: &mut [f32]) {
    let DeltaStep { query, key, value, decay, beta } = step;
    assert_eq!(query.len(), key.len(), "query and key share k_dim");
    assert_eq!(value.len(), out.len(), "value and out share v_dim");
    assert_eq!(state.len(), out.len() * key.len(), "state is [v_dim, k_dim]");

    for ((row, &value), out) in state.chunks_exact_mut(key.len()).zip(value).zip(out) {
        row.iter_mut().for_each(|s| *s *= decay);
        let write = beta * (value - dot(row, key));
        row.iter_mut().zip(key).for_each(|(s, k)| *s += write * k);
        *out = dot(row, query);
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same rule as a dense matrix product: S (decay · (I − beta k kᵀ)) + beta v kᵀ.
    /// A different shape of code, so it cannot share a bug with the one above.
    fn naive(step: DeltaStep<'_>, state: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (k_dim, v_dim) = (step.key.len(), step.value.len());
        let mut next = vec![0.0; v_dim * k_dim];
        for v in 0..v_dim {
            for j in 0..k_dim {
                let mut sum = step.beta * step.value[v] * step.key[j];
                for i in 0..k_dim {
                    let identity = if i == j { 1.0 } else { 0.0 };
                    let transition = identity - step.beta * step.key[i] * step.key[j];
                    sum += step.decay * state[v * k_dim + i] * transition;
                }
                next[v * k_dim + j] = sum;
            }
        }
        let out = next.chunks_exact(k_dim).map(|row| dot(row, step.query)).collect();
        (next, out)
    }

    proptest! {
        #[test]
        fn step_matches_the_matrix_form(
            (query, key) in (1_usize..9).prop_flat_map(|k| (unit(k), unit(k))),
            value in unit(5),
            decay in 0.1_f32..1.0,
            beta in 0.0_f32..1.0,
            seed in 0_u8..255,
        ) {
            let before: Vec<f32> =
                (0..value.len() * key.len()).map(|i| ((i as f32) + f32::from(seed)).sin()).collect();
            let step = DeltaStep { query: &query, key: &key, value: &value, decay, beta };

            let (mut state, mut out) = (before.clone(), vec![0.0; value.len()]);
            delta_step(step, &mut state, &mut out);

            let (want_state, want_out) = naive(step, &before);
            prop_assert!(close(&state, &want_state));
            prop_assert!(close(&out, &want_out));
        }
    }

    fn unit(len: usize) -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(-1.0_f32..1.0, len)
    }

    fn close(a: &[f32], b: &[f32]) -> bool {
        a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()))
    }
}
