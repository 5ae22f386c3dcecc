//! The key-value pairs at the head of a GGUF file.

use std::{collections::BTreeMap, io::Read};

use super::{GgufError, cursor::Cursor, error::HeaderError};

/// How deep arrays may lie in arrays; no known file has any.
const DEPTH_MAX: usize = 4;

/// All pairs of a file, by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(BTreeMap<String, Value>);

/// A metadata value. Narrow numbers are widened, which is exact.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned integers of 8 to 64 bits.
    Unsigned(u64),
    /// Signed integers of 8 to 64 bits.
    Signed(i64),
    /// Floats of 32 and 64 bits.
    Float(f64),
    /// Zero or one.
    Bool(bool),
    /// UTF-8.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// Numbers of one type, as they lie in the file.
    Numbers(Numbers),
    /// Arrays of arrays.
    Arrays(Vec<Value>),
}

/// An array of numbers, in the file's own bytes: four million `i8` take four million bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    kind: NumberKind,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

impl NumberKind {
    /// The format's number of a type; 8 and 9 are texts and arrays.
    fn by_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// `bytes` are as many as the type has.
    fn value(self, bytes: &[u8]) -> Value {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        let low = unsigned as u32;
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Value::Unsigned(unsigned),
            Self::I8 => Value::Signed(i64::from(unsigned as i8)),
            Self::I16 => Value::Signed(i64::from(unsigned as i16)),
            Self::I32 => Value::Signed(i64::from(low as i32)),
            Self::I64 => Value::Signed(unsigned as i64),
            Self::F32 => Value::Float(f64::from(f32::from_bits(low))),
            Self::F64 => Value::Float(f64::from_bits(unsigned)),
            Self::Bool => Value::Bool(unsigned != 0),
        }
    }
}

impl Numbers {
    /// Every number, widened.
    pub fn iter(&self) -> impl Iterator<Item = Value> {
        self.bytes.chunks_exact(self.kind.bytes()).map(|bytes| self.kind.value(bytes))
    }
}

impl Value {
    /// What it is, for messages.
    fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a truth value",
            Self::Text(_) => "a text",
            Self::Texts(_) => "an array of texts",
            Self::Numbers(_) => "an array of numbers",
            Self::Arrays(_) => "an array of arrays",
        }
    }

    fn as_unsigned(&self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(*value),
            Self::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            _ => None,
        }
    }

    fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    fn numbers<T>(&self, each: impl Fn(Value) -> Option<T>) -> Option<Vec<T>> {
        match self {
            Self::Numbers(numbers) => numbers.iter().map(each).collect(),
            _ => None,
        }
    }
}

impl Metadata {
    /// Reads `count` pairs.
    pub(super) fn read<R: Read>(cursor: &mut Cursor<R>, count: u64) -> Result<Self, HeaderError> {
        // A key's length, a value's type and one byte of it.
        "metadata count".clone_into(&mut cursor.field);
        cursor.expect(count, 8 + 4 + 1)?;
        let mut pairs = BTreeMap::new();
        for index in 0..count {
            cursor.field = format!("metadata key {index}");
            let key = cursor.text()?;
            cursor.field = format!("`{key}`");
            let kind = cursor.u32()?;
            let value = read_value(cursor, kind, 0)?;
            if pairs.insert(key, value).is_some() {
                return Err(GgufError::DuplicateKey { field: cursor.field.clone() }.into());
            }
        }
        Ok(Self(pairs))
    }

    /// The value of a key as it is.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// Keys, ascending.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let wrong = || GgufError::Value { key: key.to_owned(), expected, found: value.kind() };
        read(value).map(Some).ok_or_else(wrong)
    }

    /// An integer that is not negative, of any width.
    ///
    /// # Errors
    /// If the key is there and is something else; likewise for the others below.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.typed(key, "an integer, not negative", Value::as_unsigned)
    }

    /// A float of either width.
    ///
    /// # Errors
    /// See [`Metadata::unsigned`].
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a float", Value::as_float)
    }

    /// A truth value.
    ///
    /// # Errors
    /// See [`Metadata::unsigned`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a truth value", Value::as_bool)
    }

    /// A text.
    ///
    /// # Errors
    /// See [`Metadata::unsigned`].
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a text", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// An array of texts.
    ///
    /// # Errors
    /// See [`Metadata::unsigned`].
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.typed(key, "an array of texts", |value| match value {
            Value::Texts(texts) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// An array of integers that are not negative.
    ///
    /// # Errors
    /// See [`Metadata::unsigned`].
    pub fn unsigned_array(&self, key: &str) -> Result<Option<Vec<u64>>, GgufError> {
        self.typed(key, "an array of integers, not negative", |value| {
            value.numbers(|number| number.as_unsigned())
        })
    }

    /// An array of integers of at most 32 bits.
    ///
    /// # Errors
    /// See [`Metadata::unsigned`].
    pub fn integer_array(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.typed(key, "an array of integers of 32 bits", |value| {
            value.numbers(|number| match number {
                Value::Unsigned(number) => i32::try_from(number).ok(),
                Value::Signed(number) => i32::try_from(number).ok(),
                _ => None,
            })
        })
    }

    /// An array of floats.
    ///
    /// # Errors
    /// See [`Metadata::unsigned`].
    pub fn float_array(&self, key: &str) -> Result<Option<Vec<f64>>, GgufError> {
        self.typed(key, "an array of floats", |value| value.numbers(|number| number.as_float()))
    }

    /// An array of truth values.
    ///
    /// # Errors
    /// See [`Metadata::unsigned`].
    pub fn bool_array(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        self.typed(key, "an array of truth values", |value| {
            value.numbers(|number| number.as_bool())
        })
    }
}

const TEXT: u32 = 8;
const ARRAY: u32 = 9;

fn read_value<R: Read>(
    cursor: &mut Cursor<R>,
    kind: u32,
    depth: usize,
) -> Result<Value, HeaderError> {
    match kind {
        TEXT => cursor.text().map(Value::Text),
        ARRAY => read_array(cursor, depth),
        id => {
            let kind = number_kind(cursor, id)?;
            Ok(kind.value(&cursor.bytes(kind.bytes() as u64)?))
        }
    }
}

fn number_kind<R>(cursor: &Cursor<R>, id: u32) -> Result<NumberKind, GgufError> {
    let unknown = || GgufError::ValueType { field: cursor.field.clone(), found: id };
    NumberKind::by_id(id).ok_or_else(unknown)
}

fn read_array<R: Read>(cursor: &mut Cursor<R>, depth: usize) -> Result<Value, HeaderError> {
    let (kind, count) = (cursor.u32()?, cursor.u64()?);
    match kind {
        TEXT => {
            cursor.expect(count, 8)?;
            let texts: Result<_, HeaderError> = (0..count).map(|_| cursor.text()).collect();
            texts.map(Value::Texts)
        }
        ARRAY => {
            if depth == DEPTH_MAX {
                let field = cursor.field.clone();
                return Err(GgufError::Nested { field, most: DEPTH_MAX }.into());
            }
            cursor.expect(count, 4 + 8)?;
            let arrays: Result<_, HeaderError> =
                (0..count).map(|_| read_array(cursor, depth + 1)).collect();
            arrays.map(Value::Arrays)
        }
        id => {
            let kind = number_kind(cursor, id)?;
            cursor.expect(count, kind.bytes() as u64)?;
            let bytes = cursor.bytes(count * kind.bytes() as u64)?;
            Ok(Value::Numbers(Numbers { kind, bytes }))
        }
    }
}
