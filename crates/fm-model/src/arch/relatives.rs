//! Which of the families that run is nearest to one that does not.

use super::MODEL_TYPES;

/// Names that do not show whose network it is a variation of.
const DESCENDANTS: [(&str, &str); 4] = [
    ("kimi_k2", "deepseek_v3"),
    ("kimi_linear", "qwen3_next"),
    ("glm4_moe", "glm4_moe_lite"),
    ("phimoe", "mixtral"),
];

/// The family that a model type is a variation of, or whose name is spelled much like it.
pub(crate) fn nearest(model_type: &str) -> Option<&'static str> {
    let descends = DESCENDANTS.iter().find(|(name, _)| *name == model_type);
    let known = |ancestor: &str| MODEL_TYPES.iter().copied().find(|known| *known == ancestor);
    if let Some(ancestor) = descends.and_then(|(_, ancestor)| known(ancestor)) {
        return Some(ancestor);
    }
    let nearest = MODEL_TYPES.iter().copied().min_by_key(|known| edits(model_type, known))?;
    // A name that shares less than two thirds says nothing.
    (3 * edits(model_type, nearest) <= nearest.len()).then_some(nearest)
}

/// Letters to insert, delete or replace to make `b` of `a`.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_far_apart_as_their_letters() {
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", "abc"), 0);
    }

    #[test]
    fn relatives_are_found_by_name_and_by_descent() {
        assert_eq!(nearest("qwen2_moe"), Some("qwen3_moe"));
        assert_eq!(nearest("kimi_linear"), Some("qwen3_next"));
        assert_eq!(nearest("minimax_m1"), Some("minimax_m2"));
        assert_eq!(nearest("phimoe"), Some("mixtral"));
        assert_eq!(nearest("llama"), None);
        assert_eq!(nearest(""), None);
    }
}
