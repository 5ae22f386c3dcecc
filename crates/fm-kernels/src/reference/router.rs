//! Choice of experts for one row.

use fm_format::key::ExpertIndex;

use crate::backend::{ROUTER_GROUPS_MAX, RouterGroups, RouterScale, RouterScoring, RouterSpec};

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

/// Added to the sum that scores are divided by: sigmoids may all be zero.
const SUM_EPS: f32 = 1e-20;

/// What the experts of one row are chosen by.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    /// `[experts]`.
    pub scores: &'a [f32],
    /// `[experts]`: added for the choice only.
    pub bias: Option<&'a [f32]>,
}

impl Scores<'_> {
    fn key(&self, expert: usize) -> f32 {
        self.scores[expert] + self.bias.map_or(0.0, |bias| bias[expert])
    }
}

/// Chooses `ids.len()` experts, written in ascending order, see [`RouterSpec`]; of equal keys the
/// lower index wins. Where a key is not a number, no weight is.
///
/// # Panics
/// If there are not as many experts to choose from.
pub fn choose(spec: RouterSpec, scores: Scores<'_>, ids: &mut [ExpertIndex], weights: &mut [f32]) {
    let (experts, top_k) = (scores.scores.len(), ids.len());
    assert!(top_k <= spec.reachable(experts), "{top_k} experts can be chosen");
    let open = spec.groups.map(|groups| (experts / groups.count, best_groups(groups, scores)));
    let mut found = 0;
    for expert in 0..experts {
        if open.is_some_and(|(size, open)| !open[expert / size]) {
            continue;
        }
        // The list of the best so far, largest key first.
        let key = scores.key(expert);
        let worse = weights[..found].iter().rev().take_while(|best| key > **best).count();
        let at = found - worse;
        if at == top_k {
            continue;
        }
        found = (found + 1).min(top_k);
        ids[at..found].rotate_right(1);
        weights[at..found].rotate_right(1);
        (ids[at], weights[at]) = (ExpertIndex(expert as u16), key);
    }
    ids.sort_unstable();
    for (weight, id) in weights.iter_mut().zip(&*ids) {
        *weight = scores.scores[id.index()];
    }
    let softmax = spec.scoring == RouterScoring::SoftmaxOfChosen;
    if softmax {
        let peak = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        weights.iter_mut().for_each(|weight| *weight = (*weight - peak).exp());
    }
    // It compares with nothing, and would be passed over: nobody could say what is best.
    if (0..experts).any(|expert| scores.key(expert).is_nan()) {
        return weights.fill(f32::NAN);
    }
    let sum = match spec.scale {
        RouterScale::Plain if !softmax => 1.0,
        _ => weights.iter().sum::<f32>() + SUM_EPS,
    };
    weights.iter_mut().for_each(|weight| *weight = *weight / sum * spec.factor);
}

/// Which groups are the best; of equal ones the lower index.
fn best_groups(groups: RouterGroups, scores: Scores<'_>) -> [bool; ROUTER_GROUPS_MAX] {
    let size = scores.scores.len() / groups.count;
    let mut sums = [0.0; ROUTER_GROUPS_MAX];
    let sums = &mut sums[..groups.count];
    for (group, sum) in sums.iter_mut().enumerate() {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for expert in group * size..(group + 1) * size {
            let key = scores.key(expert);
            if key > first {
                (first, second) = (key, first);
            } else if key > second {
                second = key;
            }
        }
        *sum = first + second;
    }
    let mut open = [false; ROUTER_GROUPS_MAX];
    for _ in 0..groups.chosen {
        let closed = (0..groups.count).filter(|group| !open[*group]);
        let best = closed.reduce(|best, group| if sums[group] > sums[best] { group } else { best });
        open[best.expect("fewer groups are chosen than there are")] = true;
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SOFTMAX: RouterSpec = RouterSpec {
        top_k: 2,
        scoring: RouterScoring::Softmax,
        scale: RouterScale::Plain,
        groups: None,
        factor: 1.0,
    };

    fn chosen(spec: RouterSpec, scores: &[f32], bias: Option<&[f32]>) -> (Vec<usize>, Vec<f32>) {
        let (mut ids, mut weights) = (vec![ExpertIndex(0); spec.top_k], vec![0.0; spec.top_k]);
        choose(spec, Scores { scores, bias }, &mut ids, &mut weights);
        (ids.iter().map(|id| id.index()).collect(), weights)
    }

    #[test]
    fn equal_scores_go_to_the_lower_index() {
        let got = chosen(SOFTMAX, &[0.2, 0.4, 0.2, 0.2], None);
        assert_eq!(got, (vec![0, 1], vec![0.2, 0.4]));
    }

    #[test]
    fn what_is_no_number_is_not_passed_over() {
        for at in 0..4 {
            let mut broken = [0.25; 4];
            broken[at] = f32::NAN;
            for spec in [SOFTMAX, RouterSpec { scoring: RouterScoring::SoftmaxOfChosen, ..SOFTMAX }]
            {
                let weights = chosen(spec, &broken, None).1;
                assert!(weights.iter().all(|weight| weight.is_nan()), "{at}: {weights:?}");
            }
            let groups = Some(RouterGroups { count: 2, chosen: 1 });
            let spec = RouterSpec { scoring: RouterScoring::Sigmoid, groups, ..SOFTMAX };
            let weights = chosen(spec, &[0.25; 4], Some(&broken)).1;
            assert!(weights.iter().all(|weight| weight.is_nan()), "{at}: {weights:?}");
        }
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let spec = RouterSpec {
            scoring: RouterScoring::Sigmoid,
            scale: RouterScale::Renormalised,
            factor: 2.5,
            ..SOFTMAX
        };
        let (ids, weights) = chosen(spec, &[0.9, 0.3, 0.6, 0.1], Some(&[-1.0, 0.0, 0.0, 0.4]));
        assert_eq!(ids, [2, 3]);
        assert!((weights[0] - 2.5 * 0.6 / 0.7).abs() < 1e-6, "{weights:?}");
        assert!((weights[1] - 2.5 * 0.1 / 0.7).abs() < 1e-6, "{weights:?}");
        let (_, weights) = chosen(spec, &[0.0; 4], None);
        assert_eq!(weights, [0.0, 0.0], "a sum of zero divides nothing");
    }

    #[test]
    fn the_softmax_of_the_chosen_knows_no_others() {
        let spec = RouterSpec {
            scoring: RouterScoring::SoftmaxOfChosen,
            scale: RouterScale::Renormalised,
            ..SOFTMAX
        };
        let (ids, weights) = chosen(spec, &[7.0, -100.0, 6.0, 8.0], None);
        let share = 1.0 / (1.0 + 1.0_f32.exp());
        assert_eq!(ids, [0, 3]);
        assert!((weights[0] - share).abs() < 1e-6 && (weights[1] - 1.0 + share).abs() < 1e-6);
        let plain = RouterSpec { scale: RouterScale::Plain, ..spec };
        assert_eq!(chosen(plain, &[7.0, -100.0, 6.0, 8.0], None).1, weights);
    }

    /// Keys are negative throughout: a group that is not chosen must not win with a zero.
    #[test]
    fn only_the_best_groups_are_looked_at() {
        let groups = Some(RouterGroups { count: 3, chosen: 1 });
        let spec = RouterSpec { groups, scoring: RouterScoring::Sigmoid, ..SOFTMAX };
        let scores = [0.9, 0.1, 0.6, 0.7, 0.5, 0.2];
        // Group 0 holds the best expert, group 1 the best two.
        let (ids, weights) = chosen(spec, &scores, Some(&[-3.0; 6]));
        assert_eq!((ids, weights), (vec![2, 3], vec![0.6, 0.7]));
        let (ids, _) = chosen(spec, &[0.5; 6], None);
        assert_eq!(ids, [0, 1], "equal groups go to the lower index");
        let two = Some(RouterGroups { count: 3, chosen: 2 });
        let (ids, _) = chosen(RouterSpec { groups: two, ..spec }, &scores, Some(&[-3.0; 6]));
        assert_eq!(ids, [0, 3]);
    }

    proptest! {
        #[test]
        fn chooses_what_sorting_would(
            logits in prop::collection::vec((-4.0_f32..4.0, -1.0_f32..1.0), 1..40),
            top_k in 1_usize..12,
        ) {
            let (logits, bias): (Vec<f32>, Vec<f32>) = logits.into_iter().unzip();
            let top_k = top_k.min(logits.len());
            let mut scores = vec![0.0; logits.len()];
            softmax(&logits, &mut scores);
            prop_assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-5);

            let key = |i: usize| scores[i] + bias[i];
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
            let mut want = order[..top_k].to_vec();
            want.sort_unstable();

            let spec = RouterSpec { top_k, scale: RouterScale::Renormalised, ..SOFTMAX };
            let (got, weights) = chosen(spec, &scores, Some(&bias));
            prop_assert_eq!(&got, &want);
            let sum: f32 = want.iter().map(|&i| scores[i]).sum();
            for (i, weight) in want.iter().zip(&weights) {
                prop_assert!((weight - scores[*i] / sum).abs() < 1e-6);
            }
        }
    }
}
