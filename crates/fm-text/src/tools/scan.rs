//! Reading text that is not complete yet.

/// Whether a text begins with a tag, as far as it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    Yes,
    No,
    /// Everything that has come agrees.
    Maybe,
}

/// Whether `rest` begins with `tag`. At the `last` piece nothing is undecided.
pub(super) fn begins(rest: &str, tag: &str, last: bool) -> Is {
    if rest.starts_with(tag) {
        Is::Yes
    } else if tag.starts_with(rest) && !last {
        Is::Maybe
    } else {
        Is::No
    }
}

/// The first of `tags` that `rest` begins with. Empty tags are none.
pub(super) fn one_of<'t>(rest: &str, tags: &[&'t str], last: bool) -> Result<&'t str, Is> {
    let mut none = Is::No;
    for tag in tags.iter().filter(|tag| !tag.is_empty()) {
        match begins(rest, tag, last) {
            Is::Yes => return Ok(tag),
            Is::Maybe => none = Is::Maybe,
            Is::No => {}
        }
    }
    Err(none)
}

/// Where the end of `text` begins that may become one of `tags`; the length of the text if none may.
pub(super) fn undecided(text: &str, tags: &[&str]) -> usize {
    let longest = tags.iter().map(|tag| tag.len()).max().unwrap_or(0);
    let from = text.len().saturating_sub(longest.saturating_sub(1));
    let starts = (from..text.len()).filter(|&at| text.is_char_boundary(at));
    let may_become =
        |rest: &str| tags.iter().any(|tag| tag.len() > rest.len() && tag.starts_with(rest));
    starts.into_iter().find(|&at| may_become(&text[at..])).unwrap_or(text.len())
}

/// The first place where one of `tags` stands, and which.
pub(super) fn find<'t>(text: &str, tags: &[&'t str]) -> Option<(usize, &'t str)> {
    let found = tags.iter().filter_map(|tag| Some((text.find(tag)?, *tag)));
    found.min_by_key(|(at, tag)| (*at, usize::MAX - tag.len()))
}

/// Bytes of white space at the start.
pub(super) fn spaces(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// Finds the end of a JSON object in text that arrives in pieces; whether it is one, a parser says.
#[derive(Debug, Default)]
pub(super) struct ObjectEnd {
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl ObjectEnd {
    /// Starts inside of an object.
    pub(super) fn inside() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Reads on; returns the bytes up to and with the end, if it is here.
    pub(super) fn find(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                b'{' | b'[' if !self.in_text => self.depth += 1,
                b'}' | b']' if !self.in_text => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_ends_at_its_own_brace() {
        let text = r#"{"a": "}\"}", "b": [{}]} }"#;
        for cut in 0..text.len() {
            let mut end = ObjectEnd::default();
            let found = end.find(&text[..cut]).or_else(|| Some(cut + end.find(&text[cut..])?));
            assert_eq!(found, Some(24), "{cut}");
        }
    }

    #[test]
    fn what_may_become_a_tag_is_undecided() {
        assert_eq!(undecided("a<b", &["<bc>", "<x>"]), 1);
        assert_eq!(undecided("a<bc>", &["<bc>"]), 5);
        assert_eq!(undecided("é<", &["<｜x"]), 2);
        assert_eq!(begins("<b", "<bc>", false), Is::Maybe);
        assert_eq!(begins("<b", "<bc>", true), Is::No);
    }
}
