//! AMX (Sapphire Rapids and later): tiles of sixteen lines of 64 bytes, and products of two of them.
//!
//! The instructions are written out, because stable Rust has no names for them; the compiler itself
//! never uses a tile. What they cost is in `docs/experiments/0045`.

use std::{
    arch::{asm, x86_64::__cpuid_count},
    marker::PhantomData,
};

use crate::{
    cpu::{
        ints::Line,
        tiles::{
            RunCodes, ShapedTiles, TILE_PANELS, TILE_ROWS, TileDots, TilePlace, TileWork, Tiles,
        },
    },
    host::SpacedRows,
    reference::quantise::{BLOCK, Block},
};

/// Proof that this CPU multiplies tiles of bytes, and that the system lets this process do it.
/// The only way to obtain one is [`Amx::detect`].
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Amx(());

impl Amx {
    /// Asks the CPU, and then the system.
    pub(in crate::cpu) fn detect() -> Option<Self> {
        // Bits of leaf 7: tiles, and their products of bytes.
        const TILES_AND_BYTES: u32 = 1 << 24 | 1 << 25;
        // Leaf 7 is there wherever AVX-512 is.
        let has = is_x86_feature_detected!("avx512f")
            && __cpuid_count(7, 0).edx & TILES_AND_BYTES == TILES_AND_BYTES;
        (has && permitted()).then_some(Self(()))
    }
}

/// Tiles are 8 KB more to keep for every thread that uses them: Linux gives them to processes that ask
/// (`Documentation/arch/x86/xstate.rst`).
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers; it grants this process a register file or does nothing.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Where we do not know how to ask.
#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    line_bytes: [u16; 16],
    lines: [u8; 16],
}

/// Tiles of this thread: 0 and 1 are lines of activations, 2 and 3 codes of panels, 4 to 7 their dots.
pub(in crate::cpu) struct Shaped {
    rows: usize,
    run: usize,
    /// Tiles belong to a thread.
    _thread: PhantomData<*const ()>,
}

impl Tiles for Amx {
    type Shaped = Shaped;

    fn shape(self, rows: usize, run: usize) -> Shaped {
        let fits = (1..=TILE_ROWS).contains(&rows) && matches!(run, 16 | 32 | 64);
        assert!(fits, "a shape of tiles");
        let mut shape = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; _],
            line_bytes: [0; _],
            lines: [0; _],
        };
        for tile in 0..8 {
            (shape.line_bytes[tile], shape.lines[tile]) = match tile {
                0 | 1 => (run as u16, rows as u8),
                2 | 3 => (size_of::<Line>() as u16, run as u8 / 4),
                _ => (size_of::<Line>() as u16, rows as u8),
            };
        }
        // SAFETY: `self` proves AMX; palette 1 has tiles of these shapes, and zeros beyond.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const shape, options(nostack, readonly, preserves_flags));
        }
        Shaped { rows, run, _thread: PhantomData }
    }

    fn run<W: TileWork>(self, work: W) {
        work.on(self);
    }
}

impl Drop for Shaped {
    fn drop(&mut self) {
        // SAFETY: where a `Shaped` is, AMX is, and nobody else uses the tiles of this thread.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

/// Two tiles to dots.
macro_rules! store {
    ($to:expr, $a:literal, $b:literal) => {
        // SAFETY: tiles are shaped for no more rows than dots have lines.
        unsafe {
            asm!(
                concat!("tilestored [{a} + {line}], ", $a),
                concat!("tilestored [{b} + {line}], ", $b),
                a = in(reg) $to[0], b = in(reg) $to[1], line = in(reg) size_of::<Line>(),
                options(nostack, preserves_flags),
            );
        }
    };
}

impl ShapedTiles for Shaped {
    #[inline(always)]
    fn step<const LINES: usize>(
        &self,
        odd: bool,
        codes: &[RunCodes; TILE_PANELS],
        (x, place): (&SpacedRows<'_, LINES>, TilePlace),
        dots: &mut TileDots<LINES>,
        before: &mut TileDots<LINES>,
    ) {
        let TilePlace { first, column, at, again } = place;
        assert!(at + self.run <= BLOCK, "a run of a block");
        let block = &x.column(column, first, self.rows)[0];
        let x = Bytes {
            lines: [0, LINES - 1].map(|line| block.codes[line].0[at..].as_ptr()),
            stride: x.stride() * size_of::<Block<LINES>>(),
        };
        let (now, past) = (lines_of(dots), lines_of(before));
        // Tiles are shaped for this many rows, whose blocks are there, and for runs of codes that lie in a block;
        // panels have as many lines of codes, and dots as many lines as there are rows.
        if !again {
            // SAFETY: as just said.
            unsafe { load_codes(codes.each_ref().map(|codes| codes.0.as_ptr())) }
        }
        if LINES == 2 {
            // SAFETY: as just said.
            unsafe { two_lines(&x, now[0], past[1]) }
        } else {
            // SAFETY: as just said.
            unsafe { one_line(odd, &x, [past[0][0], past[1][0]]) }
        }
    }

    fn last<const LINES: usize>(&self, odd: bool, before: &mut TileDots<LINES>) {
        let past = lines_of(before);
        let to = if LINES == 2 { past[1] } else { [past[0][0], past[1][0]] };
        if odd && LINES == 1 {
            store!(to, "tmm4", "tmm5");
        } else {
            store!(to, "tmm6", "tmm7");
        }
    }
}

/// Runs of several rows: the first of both lines of codes, and bytes from a row to the next.
struct Bytes {
    lines: [*const i8; 2],
    stride: usize,
}

/// Where the dots of both panels and both lines go; a single line is both.
fn lines_of<const LINES: usize>(dots: &mut TileDots<LINES>) -> [[*mut Line; 2]; TILE_PANELS] {
    dots.each_mut().map(|panel| [0, LINES - 1].map(|line| panel[line].0.as_mut_ptr()))
}

/// Loads a run of both panels.
///
/// # Safety
/// Tiles are shaped, and there is as much behind every pointer as the shape says.
#[inline(always)]
unsafe fn load_codes(codes: [*const Line; TILE_PANELS]) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "tileloadd tmm2, [{left} + {line}]",
            "tileloadd tmm3, [{right} + {line}]",
            left = in(reg) codes[0], right = in(reg) codes[1], line = in(reg) size_of::<Line>(),
            options(nostack, readonly, preserves_flags),
        );
    }
}

// A tile is stored two products after the one that made it: sooner, both would wait (`docs/experiments/0045`).

/// Multiplies one line of activations with both panels, and stores the dots of the step before.
///
/// # Safety
/// As [`load_codes`].
#[inline(always)]
unsafe fn one_line(odd: bool, x: &Bytes, past: [*mut Line; TILE_PANELS]) {
    macro_rules! multiply {
        ($a:literal, $b:literal, $past_a:literal, $past_b:literal) => {
            // SAFETY: the caller's.
            unsafe {
                asm!(
                    "tileloadd tmm0, [{x} + {stride}]",
                    concat!("tilezero ", $a),
                    concat!("tdpbsud ", $a, ", tmm0, tmm2"),
                    concat!("tilestored [{past_a} + {line}], ", $past_a),
                    concat!("tilezero ", $b),
                    concat!("tdpbsud ", $b, ", tmm0, tmm3"),
                    concat!("tilestored [{past_b} + {line}], ", $past_b),
                    x = in(reg) x.lines[0], stride = in(reg) x.stride, line = in(reg) size_of::<Line>(),
                    past_a = in(reg) past[0], past_b = in(reg) past[1],
                    options(nostack, preserves_flags),
                );
            }
        };
    }
    if odd {
        multiply!("tmm6", "tmm7", "tmm4", "tmm5");
    } else {
        multiply!("tmm4", "tmm5", "tmm6", "tmm7");
    }
}

/// Multiplies two lines of activations with both panels, and stores the dots of the first panel, and of the
/// second in the step before.
///
/// # Safety
/// As [`load_codes`].
#[inline(always)]
unsafe fn two_lines(x: &Bytes, now: [*mut Line; 2], past: [*mut Line; 2]) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "tileloadd tmm0, [{high} + {stride}]",
            "tilezero tmm4",
            "tdpbsud tmm4, tmm0, tmm2",
            "tilestored [{past_high} + {line}], tmm6",
            "tileloadd tmm1, [{low} + {stride}]",
            "tilezero tmm5",
            "tdpbsud tmm5, tmm1, tmm2",
            "tilestored [{past_low} + {line}], tmm7",
            "tilezero tmm6",
            "tdpbsud tmm6, tmm0, tmm3",
            "tilestored [{now_high} + {line}], tmm4",
            "tilezero tmm7",
            "tdpbsud tmm7, tmm1, tmm3",
            "tilestored [{now_low} + {line}], tmm5",
            high = in(reg) x.lines[0], low = in(reg) x.lines[1], stride = in(reg) x.stride,
            line = in(reg) size_of::<Line>(),
            now_high = in(reg) now[0], now_low = in(reg) now[1],
            past_high = in(reg) past[0], past_low = in(reg) past[1],
            options(nostack, preserves_flags),
        );
    }
}
