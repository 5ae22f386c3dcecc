//! Headers made by hand, right and wrong in every way a hostile file can be.

use std::io::Write;

use super::*;

/// A GGUF header, piece by piece.
struct Bytes(Vec<u8>);

impl Bytes {
    fn new(tensors: u64, pairs: u64) -> Self {
        let mut bytes = Self(b"GGUF".to_vec());
        bytes.u32(3).u64(tensors).u64(pairs);
        bytes
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
        self
    }

    fn tensor(&mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> &mut Self {
        self.text(name).u32(dims.len() as u32);
        dims.iter().for_each(|dim| {
            self.u64(*dim);
        });
        self.u32(kind).u64(offset)
    }

    fn data(&mut self, alignment: usize, bytes: usize) -> &mut Self {
        self.0.resize(self.0.len().next_multiple_of(alignment) + bytes, 7);
        self
    }

    fn read(&self) -> Result<Header, FormatError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&self.0).unwrap();
        read_header(file.path(), FileIndex(0))
    }

    fn error(&self) -> GgufError {
        match self.read().unwrap_err() {
            FormatError::Gguf { source, .. } => source,
            other => panic!("{other}"),
        }
    }
}

#[test]
fn every_value_type_is_read() {
    let mut bytes = Bytes::new(0, 13);
    bytes.text("u8").u32(0).0.push(200);
    bytes.text("i8").u32(1).0.push(0xFE);
    bytes.text("u16").u32(2).0.extend([1, 2]);
    bytes.text("i16").u32(3).0.extend([0xFF, 0xFF]);
    bytes.text("u32").u32(4).u32(7).text("i32").u32(5).u32(-7_i32 as u32);
    bytes.text("f32").u32(6).u32(1.5_f32.to_bits()).text("bool").u32(7).0.push(1);
    bytes.text("text").u32(8).text("Grüße");
    bytes.text("u64").u32(10).u64(1 << 40).text("i64").u32(11).u64(u64::MAX);
    bytes.text("f64").u32(12).u64(0.1_f64.to_bits());
    bytes.text("nested").u32(9).u32(9).u64(2);
    bytes.u32(4).u64(2).u32(1).u32(2).u32(8).u64(1).text("x");
    let metadata = bytes.read().unwrap().metadata;
    assert_eq!(metadata.unsigned("u8").unwrap(), Some(200));
    assert_eq!(metadata.get("i8"), Some(&Value::Signed(-2)));
    assert_eq!(metadata.unsigned("u16").unwrap(), Some(513));
    assert_eq!(metadata.get("i16"), Some(&Value::Signed(-1)));
    assert_eq!(metadata.unsigned("u32").unwrap(), Some(7));
    assert_eq!(metadata.get("i32"), Some(&Value::Signed(-7)));
    assert_eq!(metadata.float("f32").unwrap(), Some(1.5));
    assert_eq!(metadata.bool("bool").unwrap(), Some(true));
    assert_eq!(metadata.text("text").unwrap(), Some("Grüße"));
    assert_eq!(metadata.unsigned("u64").unwrap(), Some(1 << 40));
    assert_eq!(metadata.get("i64"), Some(&Value::Signed(-1)));
    assert_eq!(metadata.float("f64").unwrap(), Some(0.1));
    let Some(Value::Arrays(arrays)) = metadata.get("nested") else { panic!("arrays in an array") };
    let Value::Numbers(numbers) = &arrays[0] else { panic!("numbers") };
    assert!(numbers.iter().eq([Value::Unsigned(1), Value::Unsigned(2)]));
    assert_eq!(arrays[1], Value::Texts(vec!["x".to_owned()]));
    assert_eq!(metadata.unsigned("nothing").unwrap(), None);
    let error = metadata.unsigned("i8").unwrap_err().to_string();
    assert_eq!(error, "`i8` is an integer, expected an integer, not negative");
}

#[test]
fn dimensions_are_turned_round_and_offsets_counted_from_the_start_of_the_file() {
    for alignment in [8_u64, 32, 64] {
        let mut bytes = Bytes::new(2, 1);
        bytes.text("general.alignment").u32(4).u32(alignment as u32);
        bytes.tensor("a", &[3, 2], 0, 0).tensor("b", &[2], 1, alignment.max(24));
        let data = (bytes.0.len() as u64).next_multiple_of(alignment);
        bytes.data(alignment as usize, alignment.max(24) as usize + 4);
        let tensors = bytes.read().unwrap().tensors;
        assert_eq!((&tensors[0].shape, tensors[0].dtype), (&vec![2, 3], Dtype::F32));
        assert_eq!(tensors[0].extent, Extent { file: FileIndex(0), offset: data, bytes: 24 });
        assert_eq!(tensors[1].extent.offset, data + alignment.max(24));
    }
}

#[test]
fn counts_are_held_against_the_file_before_anything_is_allocated() {
    type Write = fn(&mut Bytes);
    let cases: [(&str, Write); 5] = [
        ("metadata key 0", |b| {
            b.u64(u64::MAX);
        }),
        ("`k`", |b| {
            b.text("k").u32(8).u64(1 << 60);
        }),
        ("`k`", |b| {
            b.text("k").u32(9).u32(8).u64(1 << 60);
        }),
        ("`k`", |b| {
            b.text("k").u32(9).u32(12).u64(1 << 61);
        }),
        ("`k`", |b| {
            b.text("k").u32(9).u32(9).u64(1 << 62);
        }),
    ];
    for (field, write) in cases {
        let mut bytes = Bytes::new(0, 1);
        write(&mut bytes);
        bytes.0.extend([0; 16]);
        let error = bytes.error();
        assert!(matches!(&error, GgufError::Short { field: f, .. } if f == field), "{error}");
    }
    for (tensors, pairs, field) in [(0, 1 << 60, "metadata count"), (1 << 60, 0, "tensor count")] {
        let error = Bytes::new(tensors, pairs).error();
        assert!(matches!(&error, GgufError::Short { field: f, .. } if f == field), "{error}");
    }
}

#[test]
fn every_cut_of_a_header_is_refused() {
    let mut whole = Bytes::new(1, 1);
    whole.text("k").u32(9).u32(8).u64(2).text("one").text("two");
    whole.tensor("t", &[4], 0, 0).data(32, 16);
    whole.read().unwrap();
    for bytes in 0..whole.0.len() {
        assert!(Bytes(whole.0[..bytes].to_vec()).read().is_err(), "{bytes} bytes");
    }
}

#[test]
fn the_first_part_says_how_all_are_aligned() {
    let dir = tempfile::tempdir().unwrap();
    let part = |number: usize| dir.path().join(format!("m-0000{number}-of-00003.gguf"));
    let mut first = Bytes::new(1, 1);
    first.text("general.alignment").u32(4).u32(4096).tensor("a", &[4], 0, 0).data(4096, 16);
    std::fs::write(part(1), &first.0).unwrap();
    let mut starts = Vec::new();
    for (number, names) in [(2, ["b", "c"]), (3, ["d", "e"])] {
        let mut bytes = Bytes::new(2, 0);
        bytes.tensor(names[0], &[4], 0, 0).tensor(names[1], &[4], 0, 4096);
        starts.push((bytes.0.len() as u64).next_multiple_of(4096));
        bytes.data(4096, 4096 + 16);
        std::fs::write(part(number), &bytes.0).unwrap();
    }
    let tensors = open(&part(1)).unwrap().tensors;
    let offsets = ["a", "b", "c", "d", "e"].map(|name| tensors[name].extent.offset);
    assert_eq!(offsets, [4096, starts[0], starts[0] + 4096, starts[1], starts[1] + 4096]);
    // Alone it would be taken for one with other places, and is refused.
    assert!(matches!(read_header(&part(2), FileIndex(0)), Err(FormatError::Gap { .. })));
}

#[test]
fn what_contradicts_itself_is_refused() {
    let tensor = |name: &str, dims: &[u64], kind: u32, offset: u64| {
        let mut bytes = Bytes::new(1, 0);
        bytes.tensor(name, dims, kind, offset).data(32, 64);
        bytes
    };
    let pointer = b"version https://git-lfs.github.com/spec/v1\n".to_vec();
    assert!(matches!(Bytes(pointer).error(), GgufError::LfsPointer));
    assert!(matches!(Bytes(b"GGUM\x03\0\0\0".to_vec()).error(), GgufError::Magic { .. }));
    assert!(matches!(Bytes(b"GGUF\0\0\0\x03".to_vec()).error(), GgufError::BigEndian));
    assert!(matches!(Bytes(b"GGUF\x01\0\0\0".to_vec()).error(), GgufError::Version { found: 1 }));
    assert!(matches!(tensor("t", &[], 0, 0).error(), GgufError::Dimensions { found: 0, .. }));
    assert!(matches!(tensor("t", &[1; 5], 0, 0).error(), GgufError::Dimensions { found: 5, .. }));
    assert!(matches!(tensor("t", &[1 << 40; 2], 0, 0).error(), GgufError::Shape { .. }));
    assert!(matches!(tensor("t", &[31, 2], 8, 0).error(), GgufError::Shape { .. }));
    assert!(matches!(tensor("t", &[4], 0, 8).error(), GgufError::Misaligned { offset: 8, .. }));
    let unknown = tensor("t", &[4], 99, 0).error().to_string();
    assert!(unknown.starts_with("tensor `t`: unknown tensor type 99; known: f32, "), "{unknown}");
    let beyond = tensor("t", &[17], 0, 0).read().unwrap_err();
    assert!(matches!(beyond, FormatError::Truncated { tensor, .. } if tensor == "t"));
    let far = tensor("t", &[4], 0, u64::MAX - 31).read().unwrap_err();
    assert!(matches!(far, FormatError::Truncated { .. }));
    let mut shared = Bytes::new(2, 0);
    shared.tensor("a", &[9], 0, 0).tensor("b", &[4], 0, 32).data(32, 64);
    assert!(matches!(shared.read().unwrap_err(), FormatError::Overlap { .. }));

    for (second, data, words) in
        [(96, 128, "before `b`"), (32, 96, "at its end"), (64, 128, "before `b`")]
    {
        let mut loose = Bytes::new(2, 0);
        loose.tensor("a", &[4], 0, 0).tensor("b", &[4], 0, second).data(32, data);
        let error = loose.read().unwrap_err();
        assert!(matches!(error, FormatError::Gap { .. }), "{error}");
        assert!(error.to_string().contains(words), "{second} of {data}: {error}");
    }

    let pair = |write: fn(&mut Bytes)| {
        let mut bytes = Bytes::new(0, 1);
        write(&mut bytes);
        bytes.error()
    };
    let alignment = pair(|b| {
        b.text("general.alignment").u32(4).u32(24);
    });
    assert!(matches!(alignment, GgufError::Alignment { found: 24 }));
    let kind = pair(|b| {
        b.text("k").u32(13).u64(0);
    });
    assert!(matches!(kind, GgufError::ValueType { found: 13, .. }));
    let text = pair(|b| b.text("k").u32(8).u64(1).0.push(0xFF));
    assert!(matches!(text, GgufError::Text { .. }));
    let mut twice = Bytes::new(0, 2);
    twice.text("k").u32(7).0.push(1);
    twice.text("k").u32(7).0.push(1);
    assert!(matches!(twice.error(), GgufError::DuplicateKey { .. }));
}

#[test]
fn arrays_nest_only_so_deep() {
    let mut bytes = Bytes::new(0, 1);
    bytes.text("k").u32(9);
    (0..100).for_each(|_| {
        bytes.u32(9).u64(1);
    });
    assert!(matches!(bytes.error(), GgufError::Nested { most: 4, .. }));
}

#[test]
fn metadata_survives_without_its_tensors() {
    let mut bytes = Bytes::new(1, 1);
    bytes.text("k").u32(8).text("v").tensor("t", &[4], 0, 0).data(32, 16);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    std::fs::write(&path, &bytes.0).unwrap();
    std::fs::write(dir.path().join("b.gguf"), without_tensors(&path).unwrap()).unwrap();
    let bare = read_header(&dir.path().join("b.gguf"), FileIndex(0)).unwrap();
    assert_eq!(bare.metadata, bytes.read().unwrap().metadata);
    assert!(bare.tensors.is_empty());
    let list_end = bytes.read().unwrap().tensors_end as usize;
    assert_eq!(header_bytes(&path).unwrap(), bytes.0[..list_end]);
}
