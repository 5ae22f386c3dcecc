//! What has to be done to the text of a template before the engine can parse it.

/// The text with the line ends that Jinja makes of all others before it parses.
pub(super) fn with_line_feeds(source: String) -> String {
    if source.contains('\r') { source.replace("\r\n", "\n").replace('\r', "\n") } else { source }
}

/// Replaces `{% generation %}` … `{% endgeneration %}`, with which `transformers` marks what to
/// train on, by a condition that always holds. White-space control stays as written.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end);
        let word = tag[2..].trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        match word {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_conditions() {
        let source = "a{% if x %}{%- generation -%} b {% endgeneration %}{% endif %}{% generation";
        let expected = "a{% if x %}{%- if true -%} b {% endif %}{% endif %}{% generation";
        assert_eq!(without_generation_tags(source), expected);
    }
}
