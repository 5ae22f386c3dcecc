//! Sixteen floats at a time, whatever the machine calls them.
//!
//! Kernels are written once, in safe code, over [`Lanes`]. An instruction set implements it in
//! `arch/`: as one register, as two, or as an array that the compiler vectorises. The arithmetic is
//! the same lane by lane, so machines with fused multiply-add give the same bits as each other.

use fm_format::quant::fp8;

use super::{ints::Ints, tiles::Tiles};

/// Floats in a vector.
pub(super) const LANES: usize = 16;

/// Sixteen floats in memory.
pub(super) type Sixteen = [f32; LANES];

/// Begins at a cache line: a vector that lies across two costs two loads.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct OnLines<T>(pub(super) T);

/// A cache of a core.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cache {
    First,
    Second,
}

/// How far ahead weights are asked for where nothing else was measured, in bytes (`docs/experiments/0049`).
pub(super) const ASKED_AHEAD: usize = 8 << 10;

/// How far ahead a row of activations that is alone asks for weights, in bytes; measured in `docs/experiments/0065`,
/// `0073` and `0092`. What is 0 in the first cache, or as far as in the second, is a request too many: it costs nothing
/// that was measured, and a loop for each kind of machine would be long to build.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedAhead {
    /// Into the first cache. Only sets that [`Lanes::ASKS_FIRST`] heed it.
    pub(super) first: usize,
    /// Into the second.
    pub(super) second: usize,
}

impl AskedAhead {
    /// Into the second cache, where nothing else was measured.
    pub(super) const ONCE: Self = Self { first: 0, second: ASKED_AHEAD };

    /// Far into the second cache, and from there into the first.
    pub(super) const fn twice(second: usize) -> Self {
        Self { first: second * 3 / 8, second }
    }
}

/// The operations of one instruction set. A value is the proof that the machine has it.
///
/// Everything is `inline(always)`: the instructions become available only inside [`Lanes::run`].
pub(super) trait Lanes: Ints {
    /// What one register holds of them.
    type Part: Copy;
    /// What the codes of one block stand for, see [`Lanes::palette`].
    type Palette: Copy;
    /// Sixteen bytes in a register.
    type Bytes: Copy;

    /// What multiplies whole tiles.
    type Tiles: Tiles;

    /// Registers that hold sixteen floats.
    const PARTS: usize;
    /// Chains of single registers that stay in registers, with room for operands.
    const CHAINS: usize;
    /// Whether there is a way to ask for what is read later: elsewhere there is no code for it.
    const ASKS: bool = true;
    /// Whether some machines of this set ask for weights into the first cache: elsewhere there is no code for it.
    const ASKS_FIRST: bool = false;
    /// Whether every format is worth integer products of its own. Where it is not, formats only unpack, and what
    /// multiplies is compiled once.
    const PRODUCTS_PER_FORMAT: bool = true;

    /// The multiplier of tiles, if this machine has one and it is to be used.
    fn tiles(self) -> Option<Self::Tiles>;
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
    /// `codes · scale + bias` with product and sum rounded separately. Where the product is exact that
    /// is one rounding, and one instruction.
    #[inline(always)]
    fn line<const EXACT: bool>(self, codes: Self::F, scale: Self::F, bias: Self::F) -> Self::F {
        if EXACT { self.fma(codes, scale, bias) } else { self.add(self.mul(codes, scale), bias) }
    }
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

    /// Four sums at once, each in the order of [`Lanes::sum`].
    #[inline(always)]
    fn sums(self, x: [Self::F; 4]) -> [f32; 4] {
        x.map(|x| self.sum(x))
    }

    /// Sixteen sums at once, each in the order of [`Lanes::sum`]: lane `4 n + i` is that of `x[n][i]`.
    #[inline(always)]
    fn sums_of_tile(self, x: [[Self::F; 4]; 4]) -> Self::F {
        let mut all = [0.0; LANES];
        for (all, x) in all.as_chunks_mut().0.iter_mut().zip(x) {
            *all = self.sums(x);
        }
        self.load(&all)
    }

    /// Register `part` of sixteen floats in memory.
    fn load_part(self, x: &Sixteen, part: usize) -> Self::Part;
    /// The counterpart of [`Lanes::load_part`].
    fn store_part(self, x: Self::Part, out: &mut Sixteen, part: usize);
    /// As [`Lanes::fma`].
    fn fma_part(self, a: Self::Part, b: Self::Part, c: Self::Part) -> Self::Part;

    /// Sixteen little-endian f32.
    fn f32(self, bytes: &[u8; 64]) -> Self::F;
    /// Sixteen little-endian f16.
    fn f16(self, bytes: &[u8; 32]) -> Self::F;
    /// Sixteen little-endian bf16.
    fn bf16(self, bytes: &[u8; 32]) -> Self::F;
    /// Sixteen eight-bit floats, see `fm_format::quant::fp8`.
    #[inline(always)]
    fn e4m3(self, codes: &[u8; LANES]) -> Self::F {
        let mut halves = [[0; 2]; LANES];
        for (half, code) in halves.iter_mut().zip(codes) {
            *half = fp8::e4m3_as_f16(*code).to_le_bytes();
        }
        let halves = halves.as_flattened().try_into().expect("two bytes each");
        self.mul(self.f16(halves), self.splat(256.0))
    }
    /// Two little-endian bf16, each in every lane.
    fn bf16_pair(self, bytes: [u8; 4]) -> (Self::F, Self::F);
    /// One little-endian f16 in every lane.
    fn f16_splat(self, bytes: [u8; 2]) -> Self::F;
    /// Prepares `code · scale + bias` for codes of `BITS` bits.
    fn palette<const BITS: usize, const EXACT: bool>(
        self,
        scale: Self::F,
        bias: Self::F,
    ) -> Self::Palette;
    /// Sixteen codes of `BITS` bits, LSB first from byte `at` of `block` on, as the weights they
    /// stand for. Product and sum are rounded separately,
    /// as in `QuantFormat::decode`.
    ///
    /// # Panics
    /// If `block` ends before the codes do, or is shorter than 16 bytes and `BITS` above 4.
    fn affine<const BITS: usize, const EXACT: bool>(
        self,
        palette: Self::Palette,
        block: &[u8],
        at: usize,
    ) -> Self::F;

    /// Sixteen bytes from memory.
    fn bytes(self, bytes: &[u8; 16]) -> Self::Bytes;
    /// `byte >> count & mask`. Bits that a byte does not have are any: the mask takes them away.
    fn right(self, bytes: Self::Bytes, count: usize, mask: u8) -> Self::Bytes;
    /// `byte << count & mask`, as in [`Lanes::right`].
    fn left(self, bytes: Self::Bytes, count: usize, mask: u8) -> Self::Bytes;
    /// `a | b`
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `table[code]`; codes are below 16.
    fn look_up(self, table: &[i8; 16], codes: Self::Bytes) -> Self::Bytes;
    /// Negates byte `i` where bit `i` of `signs` is 1.
    fn negated(self, bytes: Self::Bytes, signs: u16) -> Self::Bytes;
    /// Bytes of `a` and `b` in turns, from byte 8 · `half` of each on.
    fn in_turns(self, a: Self::Bytes, b: Self::Bytes, half: usize) -> Self::Bytes;
    /// Bytes without a sign as floats.
    fn unsigned(self, bytes: Self::Bytes) -> Self::F;
    /// Bytes with a sign as floats.
    fn signed(self, bytes: Self::Bytes) -> Self::F;
    /// The weights that the lower four bits of bytes stand for, if products of codes and the scale
    /// of the palette are exact.
    fn nibbles(self, palette: Self::Palette, codes: Self::Bytes) -> Self::F;

    /// Asks for the cache line at `at`, which may lie anywhere: it is a hint.
    #[inline(always)]
    fn ask_for(self, at: *const u8, into: Cache) {
        self.ask_for_here(at, into);
    }
    /// The same between the reads before and behind this call. A compiler collects the requests of
    /// [`Lanes::ask_for`] where the work that is written out ends, and a burst of them holds up the reads
    /// behind it; measured in `docs/experiments/0056`.
    fn ask_for_here(self, at: *const u8, into: Cache);
    /// How far ahead this machine asks.
    #[inline(always)]
    fn asks_ahead(self) -> AskedAhead {
        AskedAhead::ONCE
    }

    /// `ahead` on a machine that asks for weights twice, nothing elsewhere: how far ahead other kernels ask for what is
    /// on its way to the second cache already, into the first.
    #[inline(always)]
    fn near(self, ahead: usize) -> usize {
        let AskedAhead { first, second } = self.asks_ahead();
        if first < second && first > 0 { ahead } else { 0 }
    }

    /// Whether a core multiplies so many codes at a time that loads of activations hold it up, unless two panels share
    /// them; measured in `docs/experiments/0072`.
    #[inline(always)]
    fn loads_bind(self) -> bool {
        true
    }

    /// Asks for the cache line `ahead` bytes behind the start of `from`, into the second cache: few lines
    /// can be on their way to the first; measured in `docs/experiments/0046`.
    #[inline(always)]
    fn prefetch<T>(self, from: &[T], ahead: usize) {
        self.ask_for(from.as_ptr().cast::<u8>().wrapping_add(ahead), Cache::Second);
    }
    /// [`Lanes::prefetch`] far ahead, and into the first cache what is near by [`Lanes::near`].
    #[inline(always)]
    fn prefetch_both<T>(self, from: &[T], (far, near): (usize, usize)) {
        if const { Self::ASKS_FIRST } {
            self.prefetch_near(from, near);
        }
        self.prefetch(from, far);
    }
    /// The same as [`Lanes::prefetch`] into any cache, between the reads before and behind it.
    #[inline(always)]
    fn prefetch_here<T>(self, from: &[T], ahead: usize, into: Cache) {
        self.ask_for_here(from.as_ptr().cast::<u8>().wrapping_add(ahead), into);
    }
    /// The same into both, as far as this machine asks.
    #[inline(always)]
    fn prefetch_both_here<T>(self, from: &[T], ahead: AskedAhead) {
        if const { Self::ASKS_FIRST } {
            self.prefetch_here(from, ahead.first, Cache::First);
        }
        self.prefetch_here(from, ahead.second, Cache::Second);
    }
    /// The same as [`Lanes::prefetch`] into the first cache, for what the second one has.
    #[inline(always)]
    fn prefetch_near<T>(self, from: &[T], ahead: usize) {
        self.ask_for(from.as_ptr().cast::<u8>().wrapping_add(ahead), Cache::First);
    }
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
pub(super) fn padded<E: Copy + Default>(x: &[E]) -> [E; LANES] {
    let mut all = [E::default(); LANES];
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

/// Sixteen bytes of a block in which sixteen codes lie that begin at byte `at`, and at which of the
/// sixteen they begin. Near its end a block has no sixteen bytes left, so the window moves back.
///
/// # Panics
/// If `block` is shorter than 16 bytes or ends before `at`.
#[inline(always)]
pub(super) fn code_window(block: &[u8], at: usize) -> (&[u8; 16], usize) {
    let start = at.min(block.len() - 16);
    (block[start..].first_chunk().expect("a window of sixteen bytes"), at - start)
}

/// `window` positions before which the codes of a window can begin, at most.
pub(super) const WINDOW_STARTS: usize = 17;
