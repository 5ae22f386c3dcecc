//! Decoding of every affine format against MLX, bit for bit.

use fm_format::{
    quant::{FORMATS, FormatKind, ScaleKind},
    record::{AffinePart, FileIndex, MatrixShape, ScaleSource, interleave},
    source::{Files, safetensors::read_header},
};
use fm_testkit::golden::{Golden, workspace_dir};

#[test]
fn every_affine_format_decodes_as_mlx_does() {
    let path = workspace_dir().join("golden/quant_vectors/mlx_quant.safetensors");
    let golden = Golden::open(&path);
    let files = Files::new(vec![path.clone()]);
    let tensors = read_header(&path, FileIndex(0)).unwrap();
    let bytes = |name: &str| {
        let tensor = tensors.iter().find(|tensor| tensor.name == name);
        files.read_extent(tensor.unwrap_or_else(|| panic!("no {name}")).extent).unwrap()
    };
    let mut compared = 0;
    for format in &FORMATS {
        let FormatKind::Affine { bits, group, scale: ScaleKind::Bf16 } = format.kind else {
            continue;
        };
        let set = format!("affine.b{bits}.g{group}");
        let (want, shape) = golden.f32(&format!("{set}.dequant"));
        let shape = MatrixShape { rows: shape[0], cols: shape[1], format };
        let mut matrix = vec![0; shape.bytes()];
        for (part, name) in [
            (AffinePart::Codes, "q"),
            (AffinePart::Scales, "s_bf16_bits"),
            (AffinePart::Biases, "b_bf16_bits"),
        ] {
            let bytes = bytes(&format!("{set}.{name}"));
            interleave(shape, part, ScaleSource::Bf16, &bytes, &mut matrix);
        }
        let mut row = vec![0.0; shape.cols];
        for (packed, want) in matrix.chunks(shape.row_bytes()).zip(want.chunks(shape.cols)) {
            format.decode_row(packed, &mut row);
            let same = row.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{}", format.name);
        }
        compared += 1;
    }
    assert_eq!(compared, 18, "every width and group was there");
}
