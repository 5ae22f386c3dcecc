//! What gaps between uses say about the next use: a table by popularity and age.

/// Classes of popularity: half octaves around the mean of a layer.
pub(super) const CLASSES: usize = 8;

/// Ages that are told apart: one by one up to [`SINGLE`], then in quarter octaves.
const AGES: usize = 40;

/// Ages up to here are told apart one by one.
const SINGLE: u32 = 16;

/// Gaps after which the table is made anew.
const LEARN_EVERY: u32 = 2000;

/// What is left of older gaps by then: the latest 70,000 or so count.
const KEEP: f32 = 0.97;

/// Turns that "soon" means. Measured: 1 and 4 are alike, 20 and more evict too late what has cooled.
const SOON: u32 = 4;

/// Turns of the mean expert that are mixed in, where a class has seen little.
const PRIOR_TURNS: f32 = 20.0;

/// See the file.
#[derive(Debug)]
pub(super) struct GapTable {
    /// Gaps that ended, `[class][age]`, older ones faded.
    ended: [[f32; AGES]; CLASSES],
    /// `[class][age]`: what follows from them.
    odds: [[f32; AGES]; CLASSES],
    learned: u32,
    /// What gaps still count that had begun before any that count by now had ended: all at first.
    open_weight: f32,
}

impl GapTable {
    /// Before anything is learned, what was used last stays.
    pub(super) fn new() -> Self {
        let by_age = std::array::from_fn(|age| ((age + 1) as f32).recip());
        Self {
            ended: [[0.0; AGES]; CLASSES],
            odds: [by_age; CLASSES],
            learned: 0,
            open_weight: 1.0,
        }
    }

    /// The class of an expert that is used so many times as often as its layer's mean.
    pub(super) fn class(popularity: f64) -> usize {
        let half_octaves = 2.0 * popularity.log2() + CLASSES as f64 / 2.0;
        half_octaves.clamp(0.0, (CLASSES - 1) as f64) as usize
    }

    /// How likely an expert is used in one of the next turns, if its last use is `age` turns before
    /// the next of them.
    pub(super) fn odds(&self, class: usize, age: u32) -> f32 {
        self.odds[class][bin(age)]
    }

    /// Takes in that an expert was used again after `gap` turns; `true` if it is time to
    /// [`GapTable::evaluate`].
    pub(super) fn learn(&mut self, class: usize, gap: u32) -> bool {
        self.ended[class][bin(gap)] += 1.0;
        self.learned += 1;
        if self.learned < LEARN_EVERY {
            return false;
        }
        self.learned = 0;
        true
    }

    /// Makes the odds anew from all gaps that have ended, and from those that are `open`, as class and
    /// turns since the last use: without them, whoever comes back late would not be known at first,
    /// and all who are old would seem to come back soon.
    pub(super) fn evaluate(&mut self, open: impl Iterator<Item = (usize, u32)>) {
        let mut all = self.ended;
        for (class, age) in open {
            all[class][bin(age)] += self.open_weight;
        }
        let turns = all.map(|gaps| turns_at(&gaps));
        let sum = |table: &[[f32; AGES]; CLASSES]| table.iter().flatten().sum::<f32>();
        let mean = sum(&self.ended) / sum(&turns).max(1.0);
        for ((odds, ended), turns) in self.odds.iter_mut().zip(&self.ended).zip(&turns) {
            let rate: [f32; AGES] = std::array::from_fn(|at| {
                (smooth(ended, at) + mean * PRIOR_TURNS) / (smooth(turns, at) + PRIOR_TURNS)
            });
            *odds = std::array::from_fn(|at| {
                let ages = first_age(at)..first_age(at) + SOON;
                1.0 - ages.map(|age| 1.0 - rate[bin(age)]).product::<f32>()
            });
        }
        self.ended.iter_mut().flatten().for_each(|ended| *ended *= KEEP);
        self.open_weight *= KEEP;
    }
}

/// A count with a share of its neighbours'.
fn smooth(counts: &[f32; AGES], at: usize) -> f32 {
    let near = |distance: usize| {
        let before = at.checked_sub(distance).map_or(0.0, |at| counts[at]);
        before + counts.get(at + distance).copied().unwrap_or(0.0)
    };
    counts[at] + 0.3 * (near(1) + near(2))
}

/// Turns that were spent at every age, by all gaps together: each passed every age below its own.
fn turns_at(gaps: &[f32; AGES]) -> [f32; AGES] {
    let mut longer = 0.0;
    let mut turns = [0.0; AGES];
    for at in (0..AGES).rev() {
        let width = (first_age(at + 1) - first_age(at)) as f32;
        turns[at] = longer * width + gaps[at] * (width + 1.0) / 2.0;
        longer += gaps[at];
    }
    turns
}

/// Where an age is counted.
fn bin(age: u32) -> usize {
    if age <= SINGLE {
        return age.max(1) as usize - 1;
    }
    let quarter_octaves = (4.0 * (f64::from(age) / f64::from(SINGLE)).log2()) as usize;
    (SINGLE as usize + quarter_octaves).min(AGES - 1)
}

/// The lowest age that is counted at `bin`.
fn first_age(bin: usize) -> u32 {
    if bin < SINGLE as usize {
        return bin as u32 + 1;
    }
    let octaves = (bin - SINGLE as usize) as f64 / 4.0;
    ((f64::from(SINGLE) * octaves.exp2()).ceil() as u32).max(SINGLE + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_bins_are_each_others_inverse() {
        for at in 0..AGES {
            assert_eq!(bin(first_age(at)), at, "first age {}", first_age(at));
        }
        for age in 1..2000 {
            assert!(first_age(bin(age)) <= age && age < first_age(bin(age) + 1).max(age + 1));
        }
        assert!((1..5000).all(|age| bin(age) <= bin(age + 1)));
    }

    #[test]
    fn popularity_counts_in_half_octaves_around_the_mean() {
        let classes = [0.01, 0.4, 0.9, 1.0, 1.4, 1.5, 3.9, 100.0].map(GapTable::class);
        assert_eq!(classes, [0, 1, 3, 4, 4, 5, 7, 7]);
    }

    /// Gaps of a class that is used with probability `p` at every turn.
    fn learn_geometric(table: &mut GapTable, class: usize, p: f64, noise: &mut u64) {
        *noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let uniform = ((*noise >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        if table.learn(class, (uniform.ln() / (1.0 - p).ln()).ceil() as u32) {
            table.evaluate(std::iter::empty());
        }
    }

    #[test]
    fn odds_without_memory_do_not_depend_on_age() {
        let (mut table, mut noise) = (GapTable::new(), 1);
        for _ in 0..50_000 {
            learn_geometric(&mut table, 6, 0.1, &mut noise);
            learn_geometric(&mut table, 2, 0.01, &mut noise);
        }
        let soon = |p: f32| 1.0 - (1.0 - p).powi(SOON as i32);
        for age in 1..30 {
            assert!((table.odds(6, age) / soon(0.1) - 1.0).abs() < 0.2, "{age}");
            assert!((table.odds(2, age) / soon(0.01) - 1.0).abs() < 0.5, "{age}");
        }
    }

    #[test]
    fn before_anything_is_learned_the_oldest_goes_and_then_the_table_decides() {
        let mut table = GapTable::new();
        assert!(table.odds(0, 1) > table.odds(7, 2));
        // Every gap is of 10 turns: whoever is 9 old comes soon, the one just used does not.
        let changed = (0..LEARN_EVERY).filter(|_| table.learn(4, 10)).count();
        assert_eq!(changed, 1);
        table.evaluate(std::iter::empty());
        assert!(table.odds(4, 9) > 2.0 * table.odds(4, 2));
    }

    #[test]
    fn who_has_not_come_back_yet_counts_too() {
        let (mut known, mut unknown) = (GapTable::new(), GapTable::new());
        for table in [&mut known, &mut unknown] {
            (0..LEARN_EVERY)
                .for_each(|at| assert_eq!(table.learn(4, 1 + at % 8), at + 1 == LEARN_EVERY));
        }
        unknown.evaluate(std::iter::empty());
        known.evaluate((0..20_000).map(|at| (4, 1 + at % 30)));
        assert!(unknown.odds(4, 7) > 0.5, "{}", unknown.odds(4, 7));
        assert!(known.odds(4, 7) < 0.1, "{}", known.odds(4, 7));
    }
}
