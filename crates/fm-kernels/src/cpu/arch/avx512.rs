//! AVX-512 F, BW, DQ, VL, VBMI and VNNI (Ice Lake, Zen 4 and later): one register holds the sixteen lanes.

#[allow(clippy::wildcard_imports)] // intrinsics carry their origin in their names
use std::arch::x86_64::*;

use crate::cpu::lanes::{AskedAhead, Cache, Lanes, Sixteen, WINDOW_STARTS, Work, code_window};

use super::{
    amx::Amx,
    avx2::{bytes_left, bytes_right},
    x86,
};

mod e4m3;
mod ints;
mod sums;

use sums::{halving_sum, halving_sums, halving_tile};

/// Proof that this CPU has AVX-512 F, BW, DQ, VL, VBMI and VNNI, and AVX2, FMA and F16C as all of those have.
/// The only way to obtain one is [`Avx512::detect`].
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Avx512 {
    tiles: Option<Amx>,
    asks_ahead: AskedAhead,
    loads_bind: bool,
}

impl Avx512 {
    /// Asks the CPU.
    pub(in crate::cpu) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        all.then(|| Self {
            tiles: None,
            asks_ahead: x86::asks_ahead(),
            loads_bind: x86::loads_bind(),
        })
    }

    /// The same with what a core of another kind would choose.
    pub(in crate::cpu) fn of_another_core(self) -> Self {
        Self { loads_bind: !self.loads_bind, ..self }
    }

    /// The same with AMX beside it.
    pub(in crate::cpu) fn detect_with_tiles() -> Option<Self> {
        let mut avx512 = Self::detect()?;
        avx512.tiles = Some(Amx::detect()?);
        Some(avx512)
    }
}

/// For every lane the byte of a 16-byte window in which its code begins, if the codes begin at
/// byte `start`, spread to a dword: the two bytes from there on, and zeros. `vpshufb` reads within
/// each quarter of a register, so every quarter holds the whole window.
const fn byte_picks(bits: usize, start: usize) -> [u8; 64] {
    let mut picks = [0x80; 64];
    let mut lane = 0;
    while lane < 16 {
        let byte = start + lane * bits / 8;
        if byte < 16 {
            picks[lane * 4] = byte as u8;
        }
        if byte < 15 {
            picks[lane * 4 + 1] = byte as u8 + 1;
        }
        lane += 1;
    }
    picks
}

/// How far the code of every lane lies from the start of its first byte.
const fn bit_shifts(bits: usize) -> [u32; 16] {
    let mut shifts = [0; 16];
    let mut lane = 0;
    while lane < 16 {
        shifts[lane] = (lane * bits % 8) as u32;
        lane += 1;
    }
    shifts
}

/// Constants of one code width.
struct Codes<const BITS: usize>;

impl<const BITS: usize> Codes<BITS> {
    /// By the byte of the window at which the codes begin.
    const PICKS: [[u8; 64]; WINDOW_STARTS] = {
        let mut picks = [[0; 64]; WINDOW_STARTS];
        let mut start = 0;
        while start < WINDOW_STARTS {
            picks[start] = byte_picks(BITS, start);
            start += 1;
        }
        picks
    };
    const SHIFTS: [u32; 16] = bit_shifts(BITS);
    const BIT_PICKS: [u8; 64] = bit_picks(BITS);
}

/// For every byte of a register the bit of its qword's 64-bit window from which it is taken, for
/// codes that fit one window: what a dword has above its code does not matter.
const fn bit_picks(bits: usize) -> [u8; 64] {
    let mut picks = [0; 64];
    let mut lane = 0;
    while lane < 16 {
        picks[lane * 4] = (lane * bits) as u8;
        lane += 1;
    }
    picks
}

/// Codes `first ..` in order, repeated so that bits above a code do not matter.
const fn codes_from<const BITS: usize>(first: usize) -> Sixteen {
    let mut codes = [0.0; 16];
    let mut lane = 0;
    while lane < 16 {
        codes[lane] = ((first + lane) % (1 << BITS)) as f32;
        lane += 1;
    }
    codes
}

/// What the codes of a block stand for: up to 5 bits the weights of codes 0 to 15 and 16 to 31,
/// which a permutation looks up; above, scale and bias.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Palette(__m512, __m512);

impl Lanes for Avx512 {
    type Tiles = Amx;
    type Part = __m512;
    type Palette = Palette;
    type Bytes = __m128i;

    const PARTS: usize = 1;
    const CHAINS: usize = 24;
    const ASKS_FIRST: bool = true;

    fn tiles(self) -> Option<Amx> {
        self.tiles
    }
    #[inline(always)]
    fn run<W: Work>(self, work: W) -> W::Out {
        #[target_feature(
            enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c"
        )]
        fn compiled<W: Work>(lanes: Avx512, work: W) -> W::Out {
            work.on(lanes)
        }
        // SAFETY: `self` proves that the CPU has these features.
        unsafe { compiled(self, work) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, x: &Sixteen) -> __m512 {
        // SAFETY: `self` proves avx512f; `x` is sixteen readable floats, loadu needs no alignment.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, out: &mut Sixteen) {
        // SAFETY: `self` proves avx512f; `out` is sixteen writable floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, x: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(x) }
    }
    #[inline(always)]
    fn power_of_two(self, n: __m512) -> __m512 {
        // SAFETY: `self` proves avx512f.
        let n = unsafe { _mm512_cvtps_epi32(n) };
        // SAFETY: `self` proves avx512f.
        let offset = unsafe { _mm512_set1_epi32(127) };
        // SAFETY: `self` proves avx512f.
        let exponent = unsafe { _mm512_add_epi32(n, offset) };
        // SAFETY: `self` proves avx512f.
        let bits = unsafe { _mm512_slli_epi32::<23>(exponent) };
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_castsi512_ps(bits) }
    }
    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        // SAFETY: `self` proves the features of `halving_sum`.
        unsafe { halving_sum(x) }
    }

    #[inline(always)]
    fn sums(self, x: [__m512; 4]) -> [f32; 4] {
        // SAFETY: `self` proves the features of `halving_sums`.
        unsafe { halving_sums(x) }
    }

    #[inline(always)]
    fn sums_of_tile(self, x: [[__m512; 4]; 4]) -> __m512 {
        // SAFETY: `self` proves the features of `halving_tile`.
        unsafe { halving_tile(x) }
    }

    #[inline(always)]
    fn load_part(self, x: &Sixteen, _: usize) -> __m512 {
        self.load(x)
    }
    #[inline(always)]
    fn store_part(self, x: __m512, out: &mut Sixteen, _: usize) {
        self.store(x, out);
    }
    #[inline(always)]
    fn fma_part(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        self.fma(a, b, c)
    }

    #[inline(always)]
    fn f32(self, bytes: &[u8; 64]) -> __m512 {
        // SAFETY: `self` proves avx512f; `bytes` is sixteen readable floats of any alignment.
        unsafe { _mm512_loadu_ps(bytes.as_ptr().cast()) }
    }
    #[inline(always)]
    fn f16(self, bytes: &[u8; 32]) -> __m512 {
        // SAFETY: `self` proves avx; `bytes` is 32 readable bytes of any alignment.
        let halves = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_cvtph_ps(halves) }
    }
    #[inline(always)]
    fn bf16(self, bytes: &[u8; 32]) -> __m512 {
        // SAFETY: `self` proves avx; `bytes` is 32 readable bytes of any alignment.
        let upper = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
        // SAFETY: `self` proves the features of `widen_bf16`.
        unsafe { widen_bf16(upper) }
    }

    #[inline(always)]
    fn e4m3(self, codes: &[u8; 16]) -> __m512 {
        // SAFETY: `self` proves the features of `e4m3::values`.
        unsafe { e4m3::values(codes) }
    }
    #[inline(always)]
    fn bf16_pair(self, bytes: [u8; 4]) -> (__m512, __m512) {
        // SAFETY: `self` proves the features of `splat_bf16_pair`.
        unsafe { splat_bf16_pair(bytes) }
    }
    #[inline(always)]
    fn f16_splat(self, bytes: [u8; 2]) -> __m512 {
        // SAFETY: `self` proves avx.
        let halves = unsafe { _mm256_set1_epi16(i16::from_le_bytes(bytes)) };
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_cvtph_ps(halves) }
    }
    #[inline(always)]
    fn palette<const BITS: usize, const EXACT: bool>(self, scale: __m512, bias: __m512) -> Palette {
        let weights = |codes: &Sixteen| self.line::<EXACT>(self.load(codes), scale, bias);
        match BITS {
            ..5 => Palette(weights(const { &codes_from::<BITS>(0) }), bias),
            5 => Palette(
                weights(const { &codes_from::<BITS>(0) }),
                weights(const { &codes_from::<BITS>(16) }),
            ),
            _ => Palette(scale, bias),
        }
    }
    #[inline(always)]
    fn affine<const BITS: usize, const EXACT: bool>(
        self,
        Palette(first, second): Palette,
        block: &[u8],
        at: usize,
    ) -> __m512 {
        // SAFETY: `self` proves the features of `spread`.
        let lanes = unsafe { spread::<BITS>(block, at) };
        // The permutations look at the lower four or five bits only.
        match BITS {
            // SAFETY: `self` proves avx512f.
            ..5 => unsafe { _mm512_permutexvar_ps(lanes, first) },
            // SAFETY: `self` proves avx512f.
            5 => unsafe { _mm512_permutex2var_ps(first, lanes, second) },
            _ => {
                // SAFETY: `self` proves the features of `numbers`.
                let codes = unsafe { numbers::<BITS>(lanes) };
                self.line::<EXACT>(codes, first, second)
            }
        }
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; 16]) -> __m128i {
        // SAFETY: `self` proves sse2; sixteen readable bytes of any alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }
    #[inline(always)]
    fn right(self, bytes: __m128i, count: usize, mask: u8) -> __m128i {
        // SAFETY: `self` proves the features of `bytes_right`.
        unsafe { bytes_right(bytes, count, mask) }
    }
    #[inline(always)]
    fn left(self, bytes: __m128i, count: usize, mask: u8) -> __m128i {
        // SAFETY: `self` proves the features of `bytes_left`.
        unsafe { bytes_left(bytes, count, mask) }
    }
    #[inline(always)]
    fn or(self, a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: `self` proves sse2.
        unsafe { _mm_or_si128(a, b) }
    }
    #[inline(always)]
    fn look_up(self, table: &[i8; 16], codes: __m128i) -> __m128i {
        // SAFETY: `self` proves sse2; sixteen readable bytes of any alignment.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        // SAFETY: `self` proves ssse3.
        unsafe { _mm_shuffle_epi8(table, codes) }
    }
    #[inline(always)]
    fn negated(self, bytes: __m128i, signs: u16) -> __m128i {
        // SAFETY: `self` proves sse2.
        let zero = unsafe { _mm_setzero_si128() };
        // SAFETY: `self` proves avx512bw and avx512vl.
        unsafe { _mm_mask_sub_epi8(bytes, signs, zero, bytes) }
    }
    #[inline(always)]
    fn in_turns(self, a: __m128i, b: __m128i, half: usize) -> __m128i {
        if half == 0 {
            // SAFETY: `self` proves sse2.
            unsafe { _mm_unpacklo_epi8(a, b) }
        } else {
            // SAFETY: `self` proves sse2.
            unsafe { _mm_unpackhi_epi8(a, b) }
        }
    }
    #[inline(always)]
    fn unsigned(self, bytes: __m128i) -> __m512 {
        // SAFETY: `self` proves avx512f.
        let numbers = unsafe { _mm512_cvtepu8_epi32(bytes) };
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_cvtepi32_ps(numbers) }
    }
    #[inline(always)]
    fn signed(self, bytes: __m128i) -> __m512 {
        // SAFETY: `self` proves avx512f.
        let numbers = unsafe { _mm512_cvtepi8_epi32(bytes) };
        // SAFETY: `self` proves avx512f.
        unsafe { _mm512_cvtepi32_ps(numbers) }
    }

    #[inline(always)]
    fn nibbles(self, Palette(weights, _): Palette, codes: __m128i) -> __m512 {
        // SAFETY: `self` proves avx512f.
        let lanes = unsafe { _mm512_cvtepu8_epi32(codes) };
        // SAFETY: `self` proves avx512f. The permutation looks at the lower four bits only.
        unsafe { _mm512_permutexvar_ps(lanes, weights) }
    }

    #[inline(always)]
    fn ask_for(self, at: *const u8, into: Cache) {
        x86::ask_for(at, into);
    }
    #[inline(always)]
    fn ask_for_here(self, at: *const u8, into: Cache) {
        x86::ask_for_here(at, into);
    }
    #[inline(always)]
    fn asks_ahead(self) -> AskedAhead {
        self.asks_ahead
    }
    #[inline(always)]
    fn loads_bind(self) -> bool {
        self.loads_bind
    }
}

/// Lane `i` gets code `i` in its lower bits, with whatever above it.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
fn spread<const BITS: usize>(block: &[u8], at: usize) -> __m512i {
    match BITS {
        2..=4 => {
            let windows = match BITS {
                2 => _mm512_set1_epi32(i32::from_le_bytes(first(block, at))),
                3 => {
                    let [a, b, c, d, e, f] = first(block, at);
                    _mm512_set1_epi64(i64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
                }
                _ => _mm512_set1_epi64(i64::from_le_bytes(first(block, at))),
            };
            let picks = Codes::<BITS>::BIT_PICKS.as_ptr();
            // SAFETY: 64 readable bytes.
            let picks = unsafe { _mm512_loadu_si512(picks.cast()) };
            _mm512_multishift_epi64_epi8(picks, windows)
        }
        8 => {
            let bytes: [u8; 16] = first(block, at);
            // SAFETY: sixteen readable bytes.
            _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
        }
        _ => {
            let (window, start) = code_window(block, at);
            // SAFETY: sixteen readable bytes.
            let window = unsafe { _mm_loadu_si128(window.as_ptr().cast()) };
            let picks = Codes::<BITS>::PICKS[start].as_ptr();
            // SAFETY: 64 readable bytes.
            let picks = unsafe { _mm512_loadu_si512(picks.cast()) };
            let pairs = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(window), picks);
            // SAFETY: 64 readable bytes.
            let shifts = unsafe { _mm512_loadu_si512(Codes::<BITS>::SHIFTS.as_ptr().cast()) };
            _mm512_srlv_epi32(pairs, shifts)
        }
    }
}

/// `N` bytes of codes.
#[inline(always)]
fn first<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    *block[at..].first_chunk().expect("the block holds its codes")
}

/// The lower `BITS` bits of every lane as a float.
#[target_feature(enable = "avx512f")]
#[inline]
fn numbers<const BITS: usize>(lanes: __m512i) -> __m512 {
    let mask = _mm512_set1_epi32((1 << BITS) - 1);
    _mm512_cvtepi32_ps(if BITS == 8 { lanes } else { _mm512_and_si512(lanes, mask) })
}

#[target_feature(enable = "avx512f")]
#[inline]
fn widen_bf16(upper: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(upper)))
}

/// A bf16 is the upper half of an f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn splat_bf16_pair(bytes: [u8; 4]) -> (__m512, __m512) {
    let both = _mm512_set1_epi32(i32::from_le_bytes(bytes));
    let upper = _mm512_and_si512(both, _mm512_set1_epi32(!0xffff));
    (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(upper))
}
