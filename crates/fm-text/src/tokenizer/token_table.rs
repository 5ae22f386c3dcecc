//! The bytes of every token, in two allocations.

/// Bytes by token id. Ids may have gaps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenTable {
    /// `spans[id]` is first byte and length in `bytes`; a gap has [`ABSENT`] for a length.
    spans: Vec<(u32, u16)>,
    bytes: Vec<u8>,
}

/// The length of a token that does not exist.
const ABSENT: u16 = u16::MAX;

/// Bytes of a token, at most: no published tokenizer has longer ones than some hundred.
pub(super) const BYTES_MAX: usize = ABSENT as usize - 1;

impl TokenTable {
    /// Later entries replace earlier ones of the same id.
    pub(crate) fn new(tokens: impl Iterator<Item = (u32, Vec<u8>)>) -> TokenTable {
        let mut by_id: Vec<Option<Vec<u8>>> = Vec::new();
        for (id, bytes) in tokens {
            let index = id as usize;
            if by_id.len() <= index {
                by_id.resize(index + 1, None);
            }
            by_id[index] = Some(bytes);
        }
        TokenTable::from_spans(by_id.iter().map(Option::as_deref))
    }

    fn from_spans<'a>(tokens: impl Iterator<Item = Option<&'a [u8]>>) -> TokenTable {
        let mut table = TokenTable::default();
        for token in tokens {
            let (start, bytes) = (table.bytes.len() as u32, token.unwrap_or_default());
            let len = u16::try_from(bytes.len()).unwrap_or(ABSENT);
            table.spans.push((start, if token.is_some() { len } else { ABSENT }));
            table.bytes.extend_from_slice(bytes);
        }
        table
    }

    /// One more than the largest id.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let &(start, len) = self.spans.get(id as usize)?;
        (len != ABSENT).then(|| &self.bytes[start as usize..][..usize::from(len)])
    }

    /// The id whose bytes are `bytes`. Looks at every token.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<u32> {
        (0..self.spans.len() as u32).find(|&id| self.get(id) == Some(bytes))
    }

    /// Appends `count | lengths | bytes`, little-endian.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.spans.len() as u32).to_le_bytes());
        self.spans.iter().for_each(|(_, len)| out.extend_from_slice(&len.to_le_bytes()));
        out.extend_from_slice(&self.bytes);
    }

    /// Reads what [`write`](Self::write) wrote; the table is all of `data`.
    pub(crate) fn read(data: &[u8]) -> Option<TokenTable> {
        let (count, rest) = data.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count) as usize;
        let (lens, bytes) = rest.split_at_checked(count.checked_mul(2)?)?;
        let mut start = 0u32;
        let mut spans = Vec::with_capacity(count);
        for len in lens.chunks_exact(2) {
            let len = u16::from_le_bytes([len[0], len[1]]);
            spans.push((start, len));
            start = start.checked_add(if len == ABSENT { 0 } else { u32::from(len) })?;
        }
        (start as usize == bytes.len()).then(|| TokenTable { spans, bytes: bytes.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_a_round_trip_with_gaps_and_refuses_a_torn_one() {
        let tokens =
            [(3, b"abc".to_vec()), (0, Vec::new()), (5, b"x".to_vec()), (3, b"d".to_vec())];
        let table = TokenTable::new(tokens.into_iter());
        assert_eq!((table.len(), table.get(3), table.get(0)), (6, Some(&b"d"[..]), Some(&b""[..])));
        assert_eq!((table.get(1), table.get(6), table.find(b"x")), (None, None, Some(5)));
        let mut data = Vec::new();
        table.write(&mut data);
        assert_eq!(TokenTable::read(&data), Some(table));
        assert_eq!(TokenTable::read(&data[..data.len() - 1]), None);
    }
}
