//! Classes of letters in the patterns of a schema.
//!
//! Where a class has all control letters, `derivre` 0.3.13 (`quote_byteset`) lets every escape of JSON stand for them,
//! `\"` and `\\` among them, whether the class has those letters or not: `[^"]` takes quotes. A class without one control
//! letter is written out, and so nothing but that letter is lost; NUL is the one that no text has. Where a pattern names
//! NUL beside such a class (`\x00|[\x01-\x1f]`), the two are one class again: that stays.

use regex_syntax::{
    ast::{self, Ast, Span, parse::Parser},
    hir::{Class, ClassUnicode, HirKind},
};

/// The pattern with such classes without NUL; what is no pattern stays as it is, for whoever says why.
pub(super) fn without_nul(pattern: String) -> String {
    let Ok(tree) = Parser::new().parse(&pattern) else { return pattern };
    let Ok(mut spans) = ast::visit(&tree, Classes::default());
    spans.retain(|span| lets_quotes_through(&pattern[span.start.offset..span.end.offset]));
    let (mut text, mut done) = (String::with_capacity(pattern.len()), 0);
    for Span { start, end } in spans {
        text.push_str(&pattern[done..start.offset]);
        text.push('[');
        text.push_str(&pattern[start.offset..end.offset]);
        text.push_str(r"--\x00]");
        done = end.offset;
    }
    text.push_str(&pattern[done..]);
    text
}

/// Where classes stand, in their order.
#[derive(Default)]
struct Classes(Vec<Span>);

impl ast::Visitor for Classes {
    type Output = Vec<Span>;
    type Err = std::convert::Infallible;

    fn finish(self) -> Result<Self::Output, Self::Err> {
        Ok(self.0)
    }

    fn visit_pre(&mut self, tree: &Ast) -> Result<(), Self::Err> {
        if matches!(tree, Ast::ClassBracketed(_) | Ast::ClassUnicode(_) | Ast::ClassPerl(_)) {
            self.0.push(*tree.span());
        }
        Ok(())
    }
}

/// Whether a class has NUL and not all of the letters that stand for it.
fn lets_quotes_through(class: &str) -> bool {
    let Ok(read) = regex_syntax::parse(class) else { return false };
    let HirKind::Class(Class::Unicode(letters)) = read.kind() else { return false };
    has(letters, '\0') && !(has(letters, '"') && has(letters, '\\'))
}

fn has(letters: &ClassUnicode, letter: char) -> bool {
    letters.ranges().iter().any(|range| (range.start()..=range.end()).contains(&letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_classes_that_let_quotes_through_change() {
        for (pattern, want) in [
            (r#"^[^"]{4}$"#, r#"^[[^"]--\x00]{4}$"#),
            (r"[^/\\]|[^\n]", r"[[^/\\]--\x00]|[^\n]"),
            (r"\p{Cc}[[:cntrl:]]", r"[\p{Cc}--\x00][[[:cntrl:]]--\x00]"),
            (r"[\x00-\x1f]", r"[[\x00-\x1f]--\x00]"),
            (r"a[a-z]\d\W.\S(?i)[^é\n]", r"a[a-z]\d\W.\S(?i)[^é\n]"),
            (r"[", "["),
        ] {
            assert_eq!(without_nul(pattern.to_owned()), want, "{pattern}");
        }
    }
}
