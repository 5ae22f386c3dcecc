//! The merges of a `SentencePiece` vocabulary, which has only scores.

use std::{cmp::Ordering, collections::HashMap};

/// Every way to put a token together from two others, best token first.
///
/// The order is the one in which `transformers` writes `tokenizer.json`: by score, then the
/// longer left half, then the longer right half, each counted in characters; what is still equal
/// stays by token, and within one token by the ids of its halves.
pub(super) fn merges<'a>(
    tokens: &'a [String],
    scores: &[f32],
    ids: &HashMap<&str, u32>,
) -> Vec<(&'a str, &'a str)> {
    let mut merges = Vec::new();
    let mut own = Vec::new();
    for (token, &score) in tokens.iter().zip(scores).filter(|(t, _)| ids.contains_key(t.as_str())) {
        let chars = token.chars().count();
        for (left_chars, (at, _)) in token.char_indices().enumerate().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&left_id), Some(&right_id)) = (ids.get(left), ids.get(right)) {
                let lengths = (left_chars, chars - left_chars);
                own.push(((left_id, right_id), score, lengths, (left, right)));
            }
        }
        own.sort_unstable_by_key(|&(ids, ..)| ids);
        merges.append(&mut own);
    }
    merges.sort_by(|(_, score, lengths, _), (_, other_score, other_lengths, _)| {
        let by_score = other_score.partial_cmp(score).unwrap_or(Ordering::Equal);
        by_score.then(other_lengths.cmp(lengths))
    });
    merges.into_iter().map(|(.., halves)| halves).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use serde_json::Value;

    use super::*;

    #[test]
    fn writes_the_merges_that_transformers_writes() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/pieces");
        let read = |name: &str| -> Value {
            serde_json::from_slice(&fs::read(golden.join(name)).unwrap()).unwrap()
        };
        let (pieces, tokenizer) = (read("pieces.json"), read("tokenizer.json"));
        let tokens: Vec<String> = serde_json::from_value(pieces["tokens"].clone()).unwrap();
        let scores: Vec<f32> = serde_json::from_value(pieces["scores"].clone()).unwrap();
        let ids = tokens.iter().map(String::as_str).zip(0..).collect();
        let expected = &tokenizer["model"]["merges"];
        assert_eq!(serde_json::json!(merges(&tokens, &scores, &ids)), *expected);
    }

    #[test]
    fn equal_scores_put_the_longer_left_half_first() {
        let tokens = ["a", "b", "ab", "ba", "aba", "bb", "abb"].map(str::to_owned);
        let ids = tokens.iter().map(String::as_str).zip(0..).collect();
        let expected = [
            ("ab", "a"),
            ("ab", "b"),
            ("a", "ba"),
            ("a", "bb"),
            ("a", "b"),
            ("b", "a"),
            ("b", "b"),
        ];
        assert_eq!(merges(&tokens, &[0.0; 7], &ids), expected);
    }
}
