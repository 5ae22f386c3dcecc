//! How prompts and those who write share the time.
//!
//! A sweep of a prompt through the layers may rest after each of them. It goes on for so long that two
//! tokens of somebody else are no further apart than was allowed, and no longer than those who write
//! shall wait for their part of the time. A layer cannot be interrupted, and what it takes is not known
//! before it is done: experts may come from a disk. So the rows of a sweep follow what layers took.

use std::time::Duration;

use fm_model::runner::Lane;

/// Rows of the first sweep beside somebody who writes, and the fewest there are. Fewer rows choose
/// nearly as many experts: where reads take the time, cutting further only repeats them.
const ROWS_MIN: usize = 64;

/// A rest aims at this part of what is allowed: layers differ.
const AIM: f64 = 0.8;

/// The part of it that a layer may take, so that rests come when they shall.
const LAYER_SHARE: f64 = 0.4;

/// So much longer than they write alone may prompts be taken in, where both is waited for; and short
/// prompts than long ones.
const PROMPT_SHARE: u32 = 3;

/// A sweep has at most so many times the rows of those before it.
const GROWTH: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    stall_max: Duration,
    /// Rows whose layers take as long as they may.
    rows: usize,
    /// The latest sweep of its size, and of the size before: rows, and seconds of the longest layer.
    layers: [Option<(f64, f64)>; 2],
    /// What the latest step of those who write took.
    text: Duration,
    /// What those who write have coming, in time without prompts.
    owed: Duration,
    /// What long prompts have coming, in time without short ones.
    owed_long: Duration,
}

impl Pace {
    pub(super) fn new(stall_max: Duration) -> Self {
        let [text, owed, owed_long] = [Duration::ZERO; 3];
        Self { stall_max, rows: ROWS_MIN, layers: [None; 2], text, owed, owed_long }
    }

    /// Rows of a sweep that begins while somebody writes.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether it is the turn of those who write, if there are any.
    pub(super) fn owes(&self) -> bool {
        self.owed > Duration::ZERO
    }

    /// Whether a sweep rests that has gone on for `elapsed`, and whose longest layer took `layer`.
    pub(super) fn rests(&self, elapsed: Duration, layer: Duration) -> bool {
        // What those who write take themselves is part of what they wait.
        let allowed = self.stall_max.mul_f64(AIM).saturating_sub(self.text);
        let allowed = allowed.max(self.stall_max / 4);
        elapsed >= PROMPT_SHARE * self.text || elapsed + layer > allowed
    }

    /// Learns from a step of those who write.
    pub(super) fn wrote(&mut self, elapsed: Duration) {
        self.text = elapsed;
        self.owed = self.owed.saturating_sub(elapsed);
    }

    /// A sweep has rested or ended after going on for `elapsed`, while somebody waited.
    pub(super) fn waited(&mut self, elapsed: Duration) {
        self.owed = (elapsed / PROMPT_SHARE).max(Duration::from_nanos(1));
    }

    /// Time that long prompts have before short ones overtake again.
    pub(super) fn owed_long(&self) -> Duration {
        self.owed_long
    }

    /// A lane's sweep has gone on for `elapsed`. Long prompts have a part of the time that short ones take,
    /// however many of these come.
    pub(super) fn went_on(&mut self, lane: Lane, elapsed: Duration) {
        match lane {
            Lane::Long => self.owed_long = self.owed_long.saturating_sub(elapsed),
            Lane::Short => self.owed_long += elapsed / PROMPT_SHARE,
        }
    }

    /// No long prompt is there: nobody has anything coming.
    pub(super) fn forget_long(&mut self) {
        self.owed_long = Duration::ZERO;
    }

    /// Learns from a sweep of so many rows, whose longest layer took `layer`.
    pub(super) fn swept(&mut self, rows: usize, layer: Duration) {
        if rows < ROWS_MIN {
            return;
        }
        let now = (rows as f64, layer.as_secs_f64().max(1e-6));
        let [latest, before] = &mut self.layers;
        if latest.is_some_and(|(rows, _)| now.0 > 1.25 * rows || now.0 < 0.8 * rows) {
            *before = *latest;
        }
        *latest = Some(now);
        // A layer takes `fixed`, for its reads, and `each` for a row. That takes two sizes to know: after
        // the first one, nothing seems fixed.
        let proportional = now.1 / now.0;
        // Sizes that drift may meet again.
        let other = before.filter(|before| (now.0 - before.0).abs() >= 1.0);
        let each = other.map_or(proportional, |before| (now.1 - before.1) / (now.0 - before.0));
        let each = each.clamp(proportional / 1e3, proportional);
        let fixed = now.1 - each * now.0;
        let aim = self.stall_max.as_secs_f64() * AIM * LAYER_SHARE;
        // Where the reads alone take too long, fewer rows save nothing: computing may take as long again.
        let fitting = (aim - fixed).max(fixed) / each;
        let least = if before.is_none() { 2 * rows } else { ROWS_MIN };
        let most = self.rows.max(rows).saturating_mul(GROWTH);
        self.rows = (fitting as usize).clamp(least, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(2);

    /// Rows of six sweeps whose layers take `fixed + each · rows` seconds.
    fn sweeps(fixed: f64, each: f64) -> Vec<usize> {
        let mut pace = Pace::new(STALL);
        let sweep = |_| {
            let rows = pace.rows().min(2048);
            pace.swept(rows, Duration::from_secs_f64(fixed + each * rows as f64));
            rows
        };
        (0..6).map(sweep).collect()
    }

    #[test]
    fn sweeps_grow_until_a_layer_takes_its_part_of_the_stall() {
        assert_eq!(sweeps(0.0, 0.0001), [64, 256, 1024, 2048, 2048, 2048]);
        assert_eq!(sweeps(0.0, 0.001), [64, 256, 640, 640, 640, 640]);
        assert_eq!(sweeps(0.0, 1.0), [64, 128, 64, 64, 64, 64], "a second size is tried once");
    }

    #[test]
    fn a_size_that_drifts_back_to_the_one_before_is_no_second_one() {
        let mut pace = Pace::new(STALL);
        for rows in [100, 130, 110, 100] {
            pace.swept(rows, Duration::from_secs_f64(0.001 * rows as f64));
        }
        assert_eq!(pace.rows(), 640);
    }

    #[test]
    fn reads_that_take_too_long_by_themselves_are_not_repeated_for_fewer_rows() {
        let rows = sweeps(3.0, 0.003);
        assert!(rows[5] >= 900, "three seconds of reads, three of computing: {rows:?}");
    }

    #[test]
    fn a_sweep_rests_before_the_layer_that_would_take_too_long() {
        let mut pace = Pace::new(STALL);
        pace.wrote(Duration::from_millis(600));
        let ms = Duration::from_millis;
        assert!(!pace.rests(ms(500), ms(400)), "0.9 of 1.0 s");
        assert!(pace.rests(ms(700), ms(400)));
        pace.wrote(ms(100));
        assert!(!pace.rests(ms(290), ms(10)));
        assert!(pace.rests(ms(300), ms(10)), "three quarters of the time");
        let none = Pace::new(Duration::ZERO);
        assert!(none.rests(ms(1), ms(1)), "after every layer");
    }

    #[test]
    fn those_who_write_have_a_quarter_of_the_time_for_themselves() {
        let mut pace = Pace::new(STALL);
        pace.waited(Duration::from_millis(600));
        let mut alone = 0;
        while pace.owes() {
            pace.wrote(Duration::from_millis(50));
            alone += 1;
        }
        assert_eq!(alone, 4, "200 ms for 600");
    }

    #[test]
    fn long_prompts_have_a_quarter_of_the_time_however_many_short_ones_come() {
        let mut pace = Pace::new(STALL);
        let ms = Duration::from_millis;
        pace.went_on(Lane::Short, ms(300));
        pace.went_on(Lane::Short, ms(300));
        pace.went_on(Lane::Long, ms(150));
        assert_eq!(pace.owed_long(), ms(50));
        pace.went_on(Lane::Long, ms(150));
        assert_eq!(pace.owed_long(), Duration::ZERO);
    }
}
