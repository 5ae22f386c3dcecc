//! `tokenizer.bin` of the first flash-moe: the lists of a byte-level `tokenizer.json`.
//!
//! ```text
//! "BPET" | version u32 = 1 | tokens u32 | merges u32 | added tokens u32
//! tokens: id u32, text      merges: left text, right text      added tokens: id u32, text
//! ```
//!
//! Little-endian; a text is a u16 length and UTF-8, bytes written as letters. Not in the file: how
//! text is split, and which added tokens are special. It was made for two vocabularies only, which
//! their lengths tell apart. All of it is read as hostile input.

use super::{GPT2, Vocabulary, kind};

/// The beginning of such a file.
pub const MAGIC: [u8; 4] = *b"BPET";
/// Tokens, without added ones, of Qwen2 to Qwen3-Next; Qwen3.5 has 248,044.
const QWEN2_TOKENS: u32 = 151_643;

/// What is wrong with a `tokenizer.bin`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BpetError {
    /// Another kind of file, or another version.
    #[error("it is no BPET file of version 1")]
    Version,

    /// Lists that go on behind the end of the file.
    #[error("it ends in the middle of its {list}; the copy is probably incomplete")]
    Short {
        /// The list.
        list: &'static str,
    },

    /// More than the lists.
    #[error("{bytes} bytes follow the last list")]
    Long {
        /// How many.
        bytes: usize,
    },

    /// A text that is none.
    #[error("the {list} have something at {index} that is not UTF-8")]
    Utf8 {
        /// The list.
        list: &'static str,
        /// The position in it.
        index: u32,
    },

    /// An id far beyond the number of tokens.
    #[error("the {list} have the id {id}, which is absurd")]
    Id {
        /// The list.
        list: &'static str,
        /// The id.
        id: u32,
    },

    /// One id with two texts.
    #[error("the {list} have another text for {id}")]
    Contradiction {
        /// The list.
        list: &'static str,
        /// The id.
        id: u32,
    },
}

const TOKENS: &str = "tokens";
const MERGES: &str = "merges";
const ADDED: &str = "added tokens";

impl Vocabulary {
    /// Reads the bytes of a `tokenizer.bin`. Added tokens like `<|this|>` are taken for special.
    ///
    /// # Errors
    /// If a count, a length or an id does not fit the file. Memory is bounded by a small multiple of
    /// its length.
    pub fn from_bpet(bytes: &[u8]) -> Result<Self, BpetError> {
        let mut rest = Rest(bytes);
        let head: Option<_> = (|| Some((rest.array()?, rest.u32()?)))();
        if head != Some((MAGIC, 1)) {
            return Err(BpetError::Version);
        }
        let mut count = |list| rest.u32().ok_or(BpetError::Short { list });
        let (tokens, merges, added) = (count(TOKENS)?, count(MERGES)?, count(ADDED)?);
        let mut vocabulary = Self {
            model: GPT2.to_owned(),
            pre: Some(if tokens == QWEN2_TOKENS { "qwen2" } else { "qwen35" }.to_owned()),
            ..Self::default()
        };
        for index in 0..tokens {
            let (id, text) = rest.token(TOKENS, index, bytes.len())?;
            vocabulary.add((id, text), kind::NORMAL, TOKENS)?;
        }
        for index in 0..merges {
            let (left, right) = (rest.text(MERGES, index)?, rest.text(MERGES, index)?);
            vocabulary.merges.push(format!("{left} {right}"));
        }
        for index in 0..added {
            let (id, text) = rest.token(ADDED, index, bytes.len())?;
            let control = text.starts_with("<|") && text.ends_with("|>");
            let kind = if control { kind::CONTROL } else { kind::USER_DEFINED };
            vocabulary.add((id, text), kind, ADDED)?;
        }
        match rest.0.len() {
            0 => Ok(vocabulary),
            bytes => Err(BpetError::Long { bytes }),
        }
    }

    /// Gives an id its text; ids between those that are named stay unused.
    fn add(
        &mut self,
        (id, text): (u32, &str),
        kind: i32,
        list: &'static str,
    ) -> Result<(), BpetError> {
        let at = id as usize;
        if at >= self.tokens.len() {
            self.tokens.resize(at + 1, String::new());
            self.token_type.resize(at + 1, kind::UNUSED);
        }
        // Added tokens may be among the others, too.
        let again = self.token_type[at] != kind::UNUSED;
        if again && (list == TOKENS || self.tokens[at] != text) {
            return Err(BpetError::Contradiction { list, id });
        }
        text.clone_into(&mut self.tokens[at]);
        self.token_type[at] = kind;
        Ok(())
    }
}

/// What has not been read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn text(&mut self, list: &'static str, index: u32) -> Result<&'a str, BpetError> {
        let short = BpetError::Short { list };
        let length = self.array().map(u16::from_le_bytes).ok_or_else(|| short.clone())?;
        let (text, rest) = self.0.split_at_checked(length.into()).ok_or(short)?;
        self.0 = rest;
        str::from_utf8(text).map_err(|_| BpetError::Utf8 { list, index })
    }

    /// Ids are held against the length of the file: each takes more than a byte there.
    fn token(
        &mut self,
        list: &'static str,
        index: u32,
        bytes: usize,
    ) -> Result<(u32, &'a str), BpetError> {
        let id = self.u32().ok_or(BpetError::Short { list })?;
        if id as usize >= bytes {
            return Err(BpetError::Id { list, id });
        }
        Ok((id, self.text(list, index)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &[u8]) -> Vec<u8> {
        [&(text.len() as u16).to_le_bytes(), text].concat()
    }

    fn token(id: u32, content: &str) -> Vec<u8> {
        [&id.to_le_bytes()[..], &text(content.as_bytes())].concat()
    }

    fn file(counts: [u32; 3], lists: &[Vec<u8>]) -> Vec<u8> {
        let counts = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
        [&[MAGIC.to_vec(), vec![1, 0, 0, 0], counts], lists].concat().concat()
    }

    fn whole() -> Vec<u8> {
        let merge = [text(b"a"), text(b"b")].concat();
        let tokens = [token(0, "a"), token(1, "b"), token(2, "ab")];
        let added = [token(5, "<|im_end|>"), token(4, "<think>")];
        file([3, 1, 2], &[&tokens[..], &[merge], &added].concat())
    }

    #[test]
    fn lists_are_read_with_gaps_and_kinds() {
        let found = Vocabulary::from_bpet(&whole()).unwrap();
        assert_eq!(found.tokens, ["a", "b", "ab", "", "<think>", "<|im_end|>"]);
        assert_eq!(found.token_type, [1, 1, 1, 5, 4, 3]);
        assert_eq!(found.merges, ["a b"]);
        assert_eq!((found.model.as_str(), found.pre.as_deref()), ("gpt2", Some("qwen35")));
        assert_eq!(found.end_tokens(), [5]);
    }

    #[test]
    fn a_file_that_ends_early_says_where() {
        let whole = whole();
        for end in 0..whole.len() {
            let error = Vocabulary::from_bpet(&whole[..end]).unwrap_err();
            let expected = if end < 8 { BpetError::Version } else { error.clone() };
            assert_eq!(error, expected);
            assert!(end < 8 || matches!(error, BpetError::Short { .. } | BpetError::Id { .. }));
        }
        let longer = [whole, vec![0]].concat();
        assert_eq!(Vocabulary::from_bpet(&longer), Err(BpetError::Long { bytes: 1 }));
    }

    #[test]
    fn lists_that_contradict_themselves_are_refused() {
        let of = |counts, lists: &[Vec<u8>]| Vocabulary::from_bpet(&file(counts, lists));
        let twice = of([2, 0, 0], &[token(0, "a"), token(0, "a")]);
        assert_eq!(twice, Err(BpetError::Contradiction { list: "tokens", id: 0 }));
        let other = of([1, 0, 1], &[token(0, "a"), token(0, "b")]);
        assert_eq!(other, Err(BpetError::Contradiction { list: "added tokens", id: 0 }));
        let absurd = of([1, 0, 0], &[token(u32::MAX, "a")]);
        assert_eq!(absurd, Err(BpetError::Id { list: "tokens", id: u32::MAX }));
        let letters = of([1, 0, 0], &[[vec![0; 4], text(&[0xff])].concat()]);
        assert_eq!(letters, Err(BpetError::Utf8 { list: "tokens", index: 0 }));
        let many = of([u32::MAX; 3], &[]);
        assert_eq!(many, Err(BpetError::Short { list: "tokens" }));
    }
}
