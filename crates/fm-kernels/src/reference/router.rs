//! Choice of experts for one row.

use fm_format::key::ExpertIndex;

use crate::backend::RouterScale;

/// `scores = softmax(logits)`.
pub fn softmax(logits: &[f32], scores: &mut [f32]) {
    let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for (score, logit) in scores.iter_mut().zip(logits) {
        *score = (logit - peak).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// The `ids.len()` largest scores, written in ascending expert index; of equal scores the lower
/// index wins.
pub fn choose(scores: &[f32], scale: RouterScale, ids: &mut [ExpertIndex], weights: &mut [f32]) {
    let top_k = ids.len();
    let mut found = 0;
    for (expert, &score) in scores.iter().enumerate() {
        if found == top_k && score <= weights[top_k - 1] {
            continue;
        }
        // Insertion into the list of the best so far, largest first.
        let at = weights[..found].iter().position(|&best| score > best).unwrap_or(found);
        found = (found + 1).min(top_k);
        ids[at..found].rotate_right(1);
        weights[at..found].rotate_right(1);
        (ids[at], weights[at]) = (ExpertIndex(expert as u16), score);
    }
    sort_ascending(ids, weights);
    if scale == RouterScale::Renormalised {
        let sum: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
}

/// Insertion sort of the pairs by expert; `top_k` is small.
fn sort_ascending(ids: &mut [ExpertIndex], weights: &mut [f32]) {
    for end in 1..ids.len() {
        let mut at = end;
        while at > 0 && ids[at - 1] > ids[at] {
            ids.swap(at - 1, at);
            weights.swap(at - 1, at);
            at -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_scores_go_to_the_lower_index() {
        let (mut ids, mut weights) = ([ExpertIndex(0); 2], [0.0; 2]);
        choose(&[0.2, 0.4, 0.2, 0.2], RouterScale::Plain, &mut ids, &mut weights);
        assert_eq!((ids, weights), ([ExpertIndex(0), ExpertIndex(1)], [0.2, 0.4]));
    }

    proptest! {
        #[test]
        fn chooses_what_sorting_would(
            logits in prop::collection::vec(-4.0_f32..4.0, 1..40),
            top_k in 1_usize..12,
        ) {
            let top_k = top_k.min(logits.len());
            let mut scores = vec![0.0; logits.len()];
            softmax(&logits, &mut scores);
            prop_assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-5);

            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
            let mut want = order[..top_k].to_vec();
            want.sort_unstable();

            let (mut ids, mut weights) = (vec![ExpertIndex(0); top_k], vec![0.0; top_k]);
            choose(&scores, RouterScale::Renormalised, &mut ids, &mut weights);
            let got: Vec<usize> = ids.iter().map(|id| id.index()).collect();
            prop_assert_eq!(&got, &want);
            let sum: f32 = want.iter().map(|&i| scores[i]).sum();
            for (i, weight) in want.iter().zip(&weights) {
                prop_assert!((weight - scores[*i] / sum).abs() < 1e-6);
            }
        }
    }
}
