//! Where a text is marked whose model has recurrent memories: these cannot be taken back, so later
//! texts can continue it from marks only.
//!
//! A mark costs memory and a copy into it, which for a large model is 60 to 190 MB. So there are few: behind what many conversations share (the system prompt and the tools),
//! before turns of the user (which may be asked again in other words) if much is new before them, before the
//! answer (where the next turn leaves what was written here), where a long prompt was cut anyway, and at
//! the end.

/// What stands before the first mark; less is computed again as quickly.
const FIRST_TOKENS: usize = 256;

/// A prompt's last control token is looked for in so many tokens at its end.
const TAIL_TOKENS: usize = 64;

/// Turns of a prompt that are marked: of the marks of a session, those that its first part, its answer and its
/// end leave.
const TURNS_MAX: usize = super::MARKS_MAX - 3;

/// Tokens between two marks where a step of a prompt ends, and those that are worth a mark of a turn.
const BETWEEN_TOKENS: u32 = 512;

/// The marks of a prompt, ascending: behind its first part, and where the answer begins. Parts
/// begin with control tokens.
pub(crate) fn of_prompt(prompt: &[u32], is_control: impl Fn(u32) -> bool) -> Vec<u32> {
    let border = |at: &usize| is_control(prompt[*at]);
    let last = prompt.len().saturating_sub(1);
    let tail = (last.saturating_sub(TAIL_TOKENS).max(1)..=last).rev().find(border);
    let tail = tail.unwrap_or(last);
    let first = (FIRST_TOKENS..tail).find(border);
    first.into_iter().chain([tail]).filter(|mark| *mark > 0).map(|mark| mark as u32).collect()
}

/// The marks before turns of a prompt, ascending, where much would be computed again without them:
/// before the latest, and before earlier ones at distances that double, not too near to the
/// first of its `parts`. A conversation that comes turn by turn has marks near there from the turns before.
pub(crate) fn of_turns(turns: &[u32], held: u32, parts: &[u32]) -> Vec<u32> {
    let is_new = |turn: u32, behind: u32| turn >= behind + BETWEEN_TOKENS;
    let Some((&latest, earlier)) = turns.split_last().filter(|of| is_new(*of.0, held)) else {
        return Vec::new();
    };
    let first = if let [first, _] = parts { held.max(*first) } else { held };
    let (mut marks, mut next, mut apart) = (vec![latest], latest, BETWEEN_TOKENS);
    for &turn in earlier.iter().rev().filter(|turn| is_new(**turn, first)) {
        if marks.len() < TURNS_MAX && turn + apart <= next {
            marks.push(turn);
            (next, apart) = (turn, 2 * apart);
        }
    }
    marks.reverse();
    marks
}

/// Whether a prompt that was cut at `position` is marked there.
pub(crate) fn is_due(position: u32, marks: &[u32]) -> bool {
    let before = marks.iter().rev().find(|mark| **mark <= position);
    position >= before.map_or(0, |mark| *mark) + BETWEEN_TOKENS
}

/// The mark that is missed least, if there are more than `max`. The first and the last are kept as long
/// as there are others, as are those that are `spared`; of those between, that goes which leaves the narrowest
/// gap for its distance from the end: texts are continued near their end more often than far from it.
pub(crate) fn thin(marks: &[u32], max: usize, spared: &[u32]) -> Option<u32> {
    if marks.len() <= max {
        return None;
    }
    let end = *marks.last()? + 1;
    let gap = |of: &&[u32]| f64::from(of[2] - of[0]) / f64::from(end - of[0]);
    let between = || marks.windows(3);
    let others = between().filter(|of| !spared.contains(&of[1]));
    let narrowest = |a: &&[u32], b: &&[u32]| gap(a).total_cmp(&gap(b));
    let least = others.min_by(narrowest).or_else(|| between().min_by(narrowest));
    least.map(|of| of[1]).or(marks.first().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_marked_behind_its_first_part_and_before_the_answer() {
        let control = |token| token == 0;
        let mut prompt = vec![1; 1000];
        for border in [0, 100, 400, 402, 900, 990, 995] {
            prompt[border] = 0;
        }
        assert_eq!(of_prompt(&prompt, control), [400, 995]);
        assert_eq!(of_prompt(&prompt[..500], control), [400, 499], "no control token at its end");
        assert_eq!(of_prompt(&prompt[..120], control), [100]);
        assert_eq!(of_prompt(&[1; 30], control), [29]);
        assert_eq!(of_prompt(&[0], control), Vec::<u32>::new());
    }

    #[test]
    fn the_latest_turn_is_marked_behind_much_that_is_new() {
        assert_eq!(of_turns(&[600], 0, &[400, 650]), [600]);
        assert!(of_turns(&[600], 100, &[650]).is_empty(), "it is computed again as quickly");
        assert!(of_turns(&[600], 700, &[]).is_empty(), "there already");
        assert!(of_turns(&[], 0, &[]).is_empty());
    }

    #[test]
    fn earlier_turns_are_marked_at_distances_that_double() {
        let turns: Vec<u32> = (1..=400).map(|at| at * 100).collect();
        let five = [32_100, 36_200, 38_300, 39_400, 40_000];
        assert_eq!(of_turns(&turns, 0, &[300, 40_050]), five, "no more");
        assert_eq!(of_turns(&turns[..60], 0, &[300, 6050]), [2200, 4300, 5400, 6000]);
        assert_eq!(of_turns(&turns[..60], 2000, &[6050]), [4300, 5400, 6000], "held");
        assert_eq!(of_turns(&turns[..60], 0, &[2000, 6050]), [4300, 5400, 6000], "first");
        assert_eq!(of_turns(&[100, 5500, 6000], 0, &[6050]), [6000], "too near");
    }

    #[test]
    fn marks_thin_out_towards_the_beginning() {
        let mut marks: Vec<u32> = (1..=40).map(|at| at * 100).collect();
        while let Some(least) = thin(&marks, 8, &[]) {
            marks.retain(|mark| *mark != least);
        }
        assert_eq!((marks[0], marks[7]), (100, 4000));
        let gaps: Vec<u32> = marks.windows(2).map(|of| of[1] - of[0]).collect();
        assert!(gaps.windows(2).all(|of| of[1] <= of[0]), "{marks:?}");
        let mut spared: Vec<u32> = (1..=40).map(|at| at * 100).collect();
        while let Some(least) = thin(&spared, 8, &[200, 1900, 2000]) {
            spared.retain(|mark| *mark != least);
        }
        assert_eq!(spared[..4], [100, 200, 1900, 2000], "{spared:?}");
        assert_eq!(thin(&[1, 2, 4, 5], 3, &[2, 4]), Some(2), "no others");
        assert_eq!(thin(&[5, 9], 1, &[]), Some(5));
        assert_eq!(thin(&[9], 0, &[9]), Some(9));
        assert_eq!(thin(&[], 0, &[]), None);
    }

    #[test]
    fn long_prompts_are_marked_where_they_are_cut() {
        assert!(!is_due(511, &[]));
        assert!(is_due(512, &[]));
        assert!(!is_due(1000, &[600, 1400]));
        assert!(is_due(1112, &[600, 1400]));
    }
}
