//! Sixteen floats at a time, whatever the machine calls them.
//!
//! Kernels are written once, in safe code, over [`Lanes`]. An instruction set implements it in
//! `arch/`: as one register, as two, or as an array that the compiler vectorises. The arithmetic is
//! the same lane by lane, so machines with fused multiply-add give the same bits as each other.

/// Floats in a vector.
pub(super) const LANES: usize = 16;

/// Sixteen floats in memory.
pub(super) type Sixteen = [f32; LANES];

/// The operations of one instruction set. A value is the proof that the machine has it.
///
/// Everything is `inline(always)`: the instructions become available only inside [`Lanes::run`].
pub(super) trait Lanes: Copy + Send + Sync + 'static {
    /// Sixteen floats in registers.
    type F: Copy;
    /// What the codes of one block stand for, see [`Lanes::palette`].
    type Palette: Copy;

    /// Runs `work` compiled for these instructions.
    fn run<W: Work>(self, work: W) -> W::Out;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::F;
    /// Sixteen floats from memory.
    fn load(self, x: &Sixteen) -> Self::F;
    /// Sixteen floats to memory.
    fn store(self, x: Self::F, out: &mut Sixteen);

    /// `a + b`
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b`
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once where the machine can.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The smaller of each pair; `b` if one is not a number.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The larger of each pair; `b` if one is not a number.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The nearest integers, ties to even.
    fn round(self, x: Self::F) -> Self::F;
    /// `2^n` for integers from -127, where it is 0, to 128, where it is infinite.
    fn power_of_two(self, n: Self::F) -> Self::F;
    /// Sum of the lanes: `i` with `i + 8`, then `i + 4`, `i + 2`, `i + 1`.
    fn sum(self, x: Self::F) -> f32;

    /// Sixteen little-endian f32.
    fn f32(self, bytes: &[u8; 64]) -> Self::F;
    /// Sixteen little-endian f16.
    fn f16(self, bytes: &[u8; 32]) -> Self::F;
    /// Sixteen little-endian bf16.
    fn bf16(self, bytes: &[u8; 32]) -> Self::F;
    /// Two little-endian bf16, each in every lane.
    fn bf16_pair(self, bytes: &[u8; 4]) -> (Self::F, Self::F);
    /// Prepares `code · scale + bias` for codes of `BITS` bits.
    fn palette<const BITS: usize>(self, scale: Self::F, bias: Self::F) -> Self::Palette;
    /// Sixteen codes of `BITS` bits, LSB first at the start of `codes`, as the weights they stand
    /// for. Product and sum are rounded separately, as in `QuantFormat::decode`.
    ///
    /// # Panics
    /// If `codes` has less than `2 · BITS` bytes.
    fn affine<const BITS: usize>(self, palette: Self::Palette, codes: &[u8]) -> Self::F;

    /// Asks for the cache line `ahead` bytes behind the start of `bytes`, which may lie anywhere:
    /// it is a hint.
    fn prefetch(self, bytes: &[u8], ahead: usize);
}

/// A piece of work that is compiled once per instruction set.
pub(super) trait Work {
    /// What it gives.
    type Out;
    /// Does it. Implementations are `inline(always)`, see [`Lanes`].
    fn on<L: Lanes>(self, lanes: L) -> Self::Out;
}

/// The first up to sixteen values of `x`, filled up with zeros.
#[inline(always)]
pub(super) fn padded(x: &[f32]) -> Sixteen {
    let mut all = [0.0; LANES];
    all[..x.len()].copy_from_slice(x);
    all
}

/// Up to sixteen floats from memory, filled up with zeros.
#[inline(always)]
pub(super) fn load_some<L: Lanes>(lanes: L, x: &[f32]) -> L::F {
    if let Ok(x) = x.try_into() { lanes.load(x) } else { lanes.load(&padded(x)) }
}

/// As many of the lanes as `out` has room for.
#[inline(always)]
pub(super) fn store_some<L: Lanes>(lanes: L, x: L::F, out: &mut [f32]) {
    if let Ok(out) = out.try_into() {
        lanes.store(x, out);
    } else {
        let mut all = [0.0; LANES];
        lanes.store(x, &mut all);
        out.copy_from_slice(&all[..out.len()]);
    }
}

/// The first `2 · BITS` bytes, which hold sixteen codes, as the lower and upper half of a
/// little-endian 128-bit number. In registers: stored piecewise and loaded whole they would stall.
///
/// # Panics
/// If `codes` is shorter than that.
#[inline(always)]
pub(super) fn code_stream<const BITS: usize>(codes: &[u8]) -> (u64, u64) {
    let codes = &codes[..2 * BITS];
    let u16_at = |at| u64::from(u16::from_le_bytes([codes[at], codes[at + 1]]));
    let u32_at = |at| u16_at(at) | u16_at(at + 2) << 16;
    let u64_at = |at| u32_at(at) | u32_at(at + 4) << 32;
    match BITS {
        2 => (u32_at(0), 0),
        3 => (u32_at(0) | u16_at(4) << 32, 0),
        4 => (u64_at(0), 0),
        5 => (u64_at(0), u16_at(8)),
        6 => (u64_at(0), u32_at(8)),
        8 => (u64_at(0), u64_at(8)),
        _ => unreachable!("no format has codes of {BITS} bits"),
    }
}
