//! Amounts of memory, as people write and read them.

use std::fmt;

/// A number of bytes that shows itself as `4.50 GB` (GB = 10⁹).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const DECIMAL: [(&str, u64); 4] =
    [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
const BINARY: [(&str, u64); 4] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DECIMAL.iter().find(|(_, size)| self.0 >= *size) {
            Some((unit, size)) => write!(f, "{:.2} {unit}", self.0 as f64 / *size as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

impl Bytes {
    /// So many or more that what is shown is no less than they are.
    pub fn up(self) -> Self {
        let shown = DECIMAL.iter().find(|(_, size)| self.0 >= *size);
        Self(shown.map_or(self.0, |(_, size)| self.0.next_multiple_of(size / 100)))
    }

    /// Reads `6GB` or `6G`, `5.5GiB`, `512MB` or a plain number of bytes; GB = 10⁹, GiB = 2³⁰.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(number_end);
        let unit = unit.trim();
        let units = DECIMAL.iter().chain(&BINARY);
        let size = match unit {
            "" | "B" | "b" => 1,
            _ => {
                let is_unit = |name: &str| {
                    let short = name.trim_end_matches('B');
                    name.eq_ignore_ascii_case(unit) || short.eq_ignore_ascii_case(unit)
                };
                units.clone().find(|(name, _)| is_unit(name)).map(|row| row.1)?
            }
        };
        let number: f64 = number.parse().ok()?;
        let bytes = number * size as f64;
        (bytes.is_finite() && bytes < 1e18).then_some(Self(bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_binary_units_differ() {
        assert_eq!(Bytes::parse("6GB"), Some(Bytes(6_000_000_000)));
        assert_eq!(Bytes::parse("6 GiB"), Some(Bytes(6 << 30)));
        assert_eq!(Bytes::parse("5.5gib"), Some(Bytes(11 << 29)));
        assert_eq!(Bytes::parse("123"), Some(Bytes(123)));
        assert_eq!(Bytes::parse("12G"), Some(Bytes(12_000_000_000)));
        assert_eq!(Bytes::parse("12gi"), Some(Bytes(12 << 30)));
        for wrong in ["", "GB", "6XB", "-1GB", "1e3GB", "99999999999TB"] {
            assert_eq!(Bytes::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn amounts_read_well() {
        assert_eq!(Bytes(999).to_string(), "999 B");
        assert_eq!(Bytes(4_497_000_000).to_string(), "4.50 GB");
        for bytes in [1, 999, 1_001, 29_161_234, 77_944_999, 4_500_000_001, 999_999_999] {
            let shown = Bytes(bytes).up().to_string();
            assert!(Bytes::parse(&shown).unwrap().0 >= bytes, "{shown} of {bytes}");
        }
    }
}
