//! Decoding of every format against the library that defines it, bit for bit.

use fm_format::{
    quant::{FORMATS, FormatKind, GgmlKind, QuantFormat, ScaleKind, by_kind, ggml::grids},
    record::{
        Extent, FileIndex, LayerRecords, MatrixRole, MatrixShape, Piece, Place, PlanarPart,
        RecordLayout, ScaleSource, interleave, spread_tiles,
    },
    source::{Files, Tensor, safetensors::read_header},
};
use fm_testkit::golden::{Golden, workspace_dir};

/// A file of `golden/quant_vectors`.
struct Vectors {
    golden: Golden,
    files: Files,
    tensors: Vec<Tensor>,
}

impl Vectors {
    fn open(name: &str) -> Self {
        let path = workspace_dir().join("golden/quant_vectors").join(name);
        let tensors = read_header(&path, FileIndex(0)).expect("the vectors have a header");
        Self { golden: Golden::open(&path), files: Files::new(vec![path]), tensors }
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let tensor = self.tensors.iter().find(|tensor| tensor.name == name);
        self.files
            .read_extent(tensor.unwrap_or_else(|| panic!("no {name}")).extent)
            .expect("the vectors are whole")
    }
}

/// Decodes rows of `cols` weights.
fn assert_decodes(format: &'static QuantFormat, packed: &[u8], want: &[f32], cols: usize) {
    let row_bytes = format.row_bytes(cols).expect("rows are whole blocks");
    assert_eq!(packed.len() * cols, want.len() * row_bytes, "{format:?}");
    let mut row = vec![0.0; cols];
    for (packed, want) in packed.chunks(row_bytes).zip(want.chunks(cols)) {
        format.decode_row(packed, &mut row);
        let differs = row.iter().zip(want).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differs, None, "{format:?}");
    }
}

#[test]
fn every_affine_format_decodes_as_mlx_does() {
    let vectors = Vectors::open("mlx_quant.safetensors");
    let mut compared = 0;
    for format in &FORMATS {
        let FormatKind::Affine { bits, group, scale: ScaleKind::Bf16 } = format.kind else {
            continue;
        };
        let set = format!("affine.b{bits}.g{group}");
        let (want, shape) = vectors.golden.f32(&format!("{set}.dequant"));
        let shape = MatrixShape { rows: shape[0], cols: shape[1], format };
        let mut matrix = vec![0; shape.bytes()];
        for (part, name) in [
            (PlanarPart::Codes, "q"),
            (PlanarPart::Scales, "s_bf16_bits"),
            (PlanarPart::Biases, "b_bf16_bits"),
        ] {
            let bytes = vectors.bytes(&format!("{set}.{name}"));
            interleave(shape, part, ScaleSource::Bf16, &bytes, &mut matrix);
        }
        assert_decodes(format, &matrix, want, shape.cols);
        compared += 1;
    }
    assert_eq!(compared, 18, "every width and group was there");
}

#[test]
fn small_floats_decode_as_mlx_does() {
    let vectors = Vectors::open("mlx_quant.safetensors");
    let modes =
        [("mxfp4", FormatKind::Mxfp4), ("nvfp4", FormatKind::Nvfp4), ("mxfp8", FormatKind::Mxfp8)];
    for (mode, kind) in modes {
        let (want, shape) = vectors.golden.f32(&format!("{mode}.dequant"));
        let format = by_kind(kind).expect("the table has it");
        let shape = MatrixShape { rows: shape[0], cols: shape[1], format };
        let mut matrix = vec![0; shape.bytes()];
        for (part, name) in [(PlanarPart::Scales, "s"), (PlanarPart::Codes, "q")] {
            let bytes = vectors.bytes(&format!("{mode}.{name}"));
            interleave(shape, part, ScaleSource::Byte, &bytes, &mut matrix);
        }
        assert_decodes(format, &matrix, want, shape.cols);
    }
}

/// In blocks of 64, because the rows end inside a tile; read as a whole and from the middle of a tile.
#[test]
fn fp8_decodes_as_ml_dtypes_does() {
    let vectors = Vectors::open("fp8_quant.safetensors");
    let (want, shape) = vectors.golden.f32("dequant");
    let (rows, cols) = (shape[0], shape[1]);
    let (codes, scales) = (vectors.bytes("codes"), vectors.bytes("scales"));
    for (group, first) in [(64, 0), (32, 0), (64, 100)] {
        let format = by_kind(FormatKind::Fp8 { group }).expect("the table has it");
        let shape = MatrixShape { rows: rows - first, cols, format };
        let mut matrix = vec![0; shape.bytes()];
        let source = ScaleSource::F32;
        interleave(shape, PlanarPart::Codes, source, &codes[first * cols..], &mut matrix);
        spread_tiles(shape, first, source, &scales, &mut matrix);
        assert_decodes(format, &matrix, &want[first * cols..], cols);
    }
}

/// Rows of gate and up come in turns, in pieces that arrive in any order.
#[test]
fn rows_in_turns_find_their_matrices() {
    let vectors = Vectors::open("mlx_quant.safetensors");
    let (want, shape) = vectors.golden.f32("mxfp4.dequant");
    let (ffn, cols) = (shape[0] / 2, shape[1]);
    let format = by_kind(FormatKind::Mxfp4).expect("the table has it");
    let half = MatrixShape { rows: ffn, cols, format };
    let layout = RecordLayout { gate: half, up: half, down: half };
    let layer = LayerRecords { layout, records: Vec::new() };
    let source = ScaleSource::Byte;
    let extent = Extent { file: FileIndex(0), offset: 0, bytes: 0 };
    let [codes, scales] = [(PlanarPart::Codes, "mxfp4.q"), (PlanarPart::Scales, "mxfp4.s")]
        .map(|(part, name)| (Piece { extent, place: Place::InTurns { part, source } }, name));
    for order in [[codes, scales], [scales, codes]] {
        let mut record = vec![0; layout.bytes()];
        for (piece, name) in order {
            layer.place(&piece, &vectors.bytes(name), &mut record);
        }
        for (role, first) in [(MatrixRole::Gate, 0), (MatrixRole::Up, 1)] {
            let matrix = &record[layout.offset(role)..][..half.bytes()];
            let rows = want.chunks(cols).skip(first).step_by(2);
            assert_decodes(format, matrix, &rows.flatten().copied().collect::<Vec<_>>(), cols);
        }
    }
}

#[test]
fn every_ggml_format_decodes_as_gguf_py_does() {
    let vectors = Vectors::open("gguf_quant.safetensors");
    for format in FORMATS.iter().filter(|format| matches!(format.kind, FormatKind::Ggml(_))) {
        let name = format.name.to_uppercase();
        let (want, shape) = vectors.golden.f32(&format!("{name}.dequant"));
        assert_decodes(format, &vectors.bytes(&format!("{name}.bytes")), want, shape[1]);
    }
}

/// gguf-py has encoders for these, and they are those of ggml.
#[test]
fn simple_ggml_formats_encode_as_gguf_py_does() {
    use GgmlKind::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    let vectors = Vectors::open("gguf_quant.safetensors");
    let (weights, shape) = vectors.golden.f32("w");
    for format in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0].map(|kind| by_kind(FormatKind::Ggml(kind))) {
        let format = format.unwrap();
        let want = vectors.bytes(&format!("{}.bytes", format.name.to_uppercase()));
        let mut row = vec![0; format.row_bytes(shape[1]).unwrap()];
        for (weights, want) in weights.chunks(shape[1]).zip(want.chunks(row.len())) {
            format.encode_row(weights, &mut row);
            assert_eq!(row, want, "{format:?}");
        }
    }
}

/// The vectors above meet few entries of the codebooks; these are all.
#[test]
fn every_entry_of_a_codebook_is_that_of_gguf_py() {
    let vectors = Vectors::open("gguf_codebooks.safetensors");
    let check = |name: &str, book: &[u16], values: &[i8]| {
        let (codes, bits) = if values.len() == 3 { (8, 2) } else { (4, 3) };
        let code = |entry: u16, at: usize| usize::from(entry >> (at * bits) & ((1 << bits) - 1));
        let entries = book.iter().flat_map(|entry| (0..codes).map(|at| values[code(*entry, at)]));
        let got: Vec<u8> = entries.map(i8::cast_unsigned).collect();
        assert!(got == vectors.bytes(name), "{name}");
    };
    check("IQ1_S", &grids::IQ1, &[-1, 0, 1]);
    check("IQ2_XXS", &grids::IQ2_XXS, &[8, 25, 43]);
    check("IQ2_XS", &grids::IQ2_XS, &[8, 25, 43]);
    check("IQ2_S", &grids::IQ2_S, &[8, 25, 43]);
    check("IQ3_XXS", &grids::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62]);
    check("IQ3_S", &grids::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15]);
}
