//! The two checksums of the hub: SHA-256 of large files, git's own of small ones.

use std::fmt::Write;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// What a file's bytes must come to. Its text is also the name of the file in a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Of the bytes; large files have it.
    Sha256(String),
    /// Git's name of a blob: SHA-1 of `blob LENGTH\0` and the bytes.
    Git(String),
}

impl Checksum {
    /// A checksum from its digits; 40 of them are git's.
    pub(crate) fn parse(digits: &str) -> Option<Self> {
        let hex = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        match digits.len() {
            _ if !hex => None,
            40 => Some(Self::Git(digits.to_owned())),
            64 => Some(Self::Sha256(digits.to_owned())),
            _ => None,
        }
    }

    /// Lower-case hexadecimal digits.
    pub fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }

    /// Begins to add up a file of this length.
    pub(crate) fn begin(&self, bytes: u64) -> Sum {
        Sum(match self {
            Self::Sha256(_) => Context::new(&SHA256),
            Self::Git(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {bytes}\0").as_bytes());
                context
            }
        })
    }
}

/// A checksum in the making.
pub(crate) struct Sum(Context);

impl Sum {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn digits(self) -> String {
        self.0.finish().as_ref().iter().fold(String::new(), |mut digits, byte| {
            write!(digits, "{byte:02x}").expect("a string takes everything");
            digits
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(checksum: &Checksum, bytes: &[u8]) -> String {
        let mut sum = checksum.begin(bytes.len() as u64);
        bytes.chunks(3).for_each(|piece| sum.add(piece));
        sum.digits()
    }

    /// `git hash-object` and `sha256sum` of the same text.
    #[test]
    fn both_are_what_git_and_sha256sum_say() {
        let git = Checksum::parse("4b5fa63702dd96796042e92787f464e28f09f17d").unwrap();
        assert_eq!(sum(&git, b"hello, world\n"), git.digits());
        let sha = "853ff93762a06ddbf722c4ebe9ddd66d8f63ddaea97f521c3ecc20da7c976020";
        let sha = Checksum::parse(sha).unwrap();
        assert_eq!(sum(&sha, b"hello, world\n"), sha.digits());
    }

    #[test]
    fn digits_that_could_be_a_path_are_none() {
        for wrong in ["", "../../etc/passwd", "abc", &"A".repeat(40), &"g".repeat(64)] {
            assert_eq!(Checksum::parse(wrong), None, "{wrong}");
        }
    }
}
