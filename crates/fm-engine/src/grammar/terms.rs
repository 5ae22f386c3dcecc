//! Alternatives that may be left of an expression after a letter.
//!
//! The lexer works with derivatives: what may follow a letter. Where the first parts of a sequence may be empty, any of
//! them may be what goes on, so that the derivative of `a?b?c?…` is an alternation of as many terms as there are such
//! parts; and it is put together from the inside, one part after the other, each with an alternation of its own. That is
//! the square of their number, for every letter, and `llguidance` does it for all letters before it looks at any bound.

use llguidance::derivre::{AlphabetInfo, ExprRef, RegexBuilder, raw::ExprSet};

use super::GrammarError;

/// Terms of all derivatives by one letter, times letters. Of 4 bytes each: 24 MB. That is 600 parts in a row that may be
/// empty; 1,500 ranges of numbers in a schema have 40,000, and a choice of 65 KB of words has 210,000.
const TERMS_MAX: u64 = 6_000_000;

/// Bytes of a term.
const TERM_BYTES: u64 = 4;

/// How `derivre` 0.3 numbers kinds of expressions (`ExprTag`, which has no public name).
const BYTE_CONCAT: u8 = 5;
const REPEAT: u8 = 9;
const CONCAT: u8 = 10;
const OR: u8 = 11;

/// What the derivatives of these expressions may take.
///
/// # Errors
/// If that is too much.
pub(super) fn bytes(exprs: &ExprSet) -> Result<u64, GrammarError> {
    let terms = terms(exprs);
    if terms.saturating_mul(256) <= TERMS_MAX {
        return Ok(terms * 256 * TERM_BYTES);
    }
    // Letters that no expression tells apart are one.
    let all: Vec<ExprRef> = (1..exprs.len() as u32).map(ExprRef::new).collect();
    let (letters, _, _) = AlphabetInfo::from_exprset(exprs.clone(), &all);
    let terms = terms.saturating_mul(letters.len() as u64);
    if terms > TERMS_MAX {
        let reason = "too many parts of an expression in a row may be empty (x?, x*, x{0,9} and what consists of \
                      them): what may follow takes the square of their number"
            .to_owned();
        return Err(GrammarError::Invalid { reason });
    }
    Ok(terms * TERM_BYTES)
}

/// The same of one expression; what is none takes nothing.
pub(super) fn of_text(text: &str) -> Result<u64, GrammarError> {
    let mut builder = RegexBuilder::new();
    // What does not parse has left nothing there, or a part.
    drop(builder.mk_regex(text));
    bytes(builder.exprset())
}

/// Terms of all alternations that the derivatives by a letter make.
fn terms(exprs: &ExprSet) -> u64 {
    // What an expression is made of was there before it. The first has no kind.
    let mut of_each = vec![1_u64; exprs.len()];
    let mut all = 0_u64;
    for at in 1..exprs.len() {
        let id = ExprRef::new(at as u32);
        let parts = exprs.get_args(id);
        let branches = |id: ExprRef| match exprs.get_tag(id) as u8 {
            OR => exprs.get_args(id).len() as u64,
            _ => 1,
        };
        let (own, made) = match exprs.get_tag(id) as u8 {
            CONCAT => {
                // A letter that is all of the first part leaves the rest itself, with its branches.
                let rest = branches(parts[1]);
                let may_be_empty = exprs.is_nullable(parts[0]);
                let own = rest + if may_be_empty { of_each[parts[1].as_usize()] } else { 0 };
                (own, if may_be_empty { own } else { 0 })
            }
            OR => {
                let own =
                    parts.iter().map(|part| of_each[part.as_usize()]).fold(0, u64::saturating_add);
                // As many as it has branches is no more than it takes itself.
                (own, own.saturating_sub(parts.len() as u64))
            }
            BYTE_CONCAT | REPEAT => (branches(parts[0]), 0),
            _ => (1, 0),
        };
        of_each[at] = own;
        all = all.saturating_add(made);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> u64 {
        let mut builder = RegexBuilder::new();
        builder.mk_regex(text).unwrap();
        terms(builder.exprset())
    }

    #[test]
    fn parts_that_may_be_empty_count_by_the_square() {
        let row = |count: usize| {
            let part = |at: usize| format!("([{}]x)?", char::from(b'a' + at as u8));
            (0..count).map(part).collect::<Vec<_>>().concat()
        };
        for count in 2..20_u64 {
            // The last part is no sequence, and the one before it has two terms.
            assert_eq!(of(&row(count as usize)), count * (count + 1) / 2 - 1, "{count}");
        }
        assert_eq!(of(&format!("a{}", row(10))), of(&row(10)));
        assert_eq!(of("abc|abd|xyz[a-z]{4,}"), 0);
    }

    #[test]
    fn what_takes_gigabytes_is_refused_and_what_people_write_is_not() {
        let row = |count: usize, part: &dyn Fn(usize) -> String| -> String {
            (0..count).map(part).collect()
        };
        let letter = |at: usize| char::from(b'a' + (at % 26) as u8);
        let optional = |count| row(count, &|at| format!("(.*{})?", letter(at)));
        assert!(of_text(&optional(300)).is_ok());
        assert!(of_text(&optional(1000)).is_err());
        assert!(of_text(&optional(10_900)).is_err());
        assert!(of_text(&row(4000, &|at| format!("(a|.{{0,{at}}})"))).is_err());
        assert!(of_text(&"a?".repeat(32_000)).is_err());
        for fine in [
            r"(?:[0-9a-f]{1,4}:){1,7}:|(?:[0-9a-f]{1,4}:){1,6}(?::[0-9a-f]{1,4}){1,6}",
            r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?",
            r"\s*(\w+)\s*=\s*(\w+)?\s*;?\s*(//.*)?\s*",
            &"a*b".repeat(21_000),
            &row(9000, &|at| format!("{at:04x}|")),
            "(no expression",
        ] {
            assert!(of_text(fine).is_ok(), "{fine:.40}");
        }
    }
}
