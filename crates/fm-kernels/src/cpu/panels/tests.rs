//! No format says codes smaller than they are, and no product of the largest overflows.

use std::marker::PhantomData;

use fm_format::quant;

use super::{
    many::{Run, add_to, add_to_two, two_rows_fit},
    shared::{RUNS_MAX, Runs, Unit, WEIGHTS_MAX, add_unit},
    *,
};
use crate::cpu::Level;

/// The largest code of some units of any bytes.
struct LargestCode<P>(P);

impl<P: Panels> Work for LargestCode<P> {
    type Out = u8;

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) -> u8 {
        let mut largest = 0;
        for unit in 0..64_u32 {
            let first = unit * (P::LINES * LINE_BYTES) as u32;
            // All bytes, next to any others.
            let byte = |at: u32| {
                let mixed = (first + at).wrapping_mul(0x9e37_79b9);
                (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b).to_be_bytes()[0]
            };
            let bytes: Vec<u8> = (0..(P::LINES * LINE_BYTES) as u32).map(byte).collect();
            for run in 0..P::WEIGHTS / P::RUN {
                for word in 0..P::RUN / 4 {
                    let mut codes = [0; LINE_BYTES];
                    let unit = bytes.as_chunks().0;
                    lanes.store_words(self.0.codes(lanes, unit, run, word), &mut codes);
                    largest = codes.into_iter().fold(largest, u8::max);
                }
            }
        }
        largest
    }
}

/// Sums of products are as short as this allows.
#[test]
fn no_code_is_above_what_its_format_says() {
    fn largest_and_said<P: Panels>(panels: P) -> (u8, u8) {
        (Level::portable().run(LargestCode(panels)), P::CODE_MAX)
    }
    for format in &quant::FORMATS {
        if let Some((largest, said)) = with_panels!(format, panels => largest_and_said(panels)) {
            assert_eq!(largest, said, "{}", format.name);
        }
    }
}

/// What sums of products depend on: formats that are alike in it are compiled once.
#[derive(Clone, Copy)]
struct Shape<const RUN: usize, const CODE_MAX: u8, const OFFSET: i32>;

impl<const RUN: usize, const CODE_MAX: u8, const OFFSET: i32> Panels
    for Shape<RUN, CODE_MAX, OFFSET>
{
    const WEIGHTS: usize = BLOCK;
    const LINES: usize = BLOCK / 4;
    const RUN: usize = RUN;
    const OFFSET: i32 = OFFSET;
    const CODE_MAX: u8 = CODE_MAX;
    type Head<L: Lanes> = ();

    fn head<L: Lanes>(self, _: L, _: &[Line], _: &HalfLine) {}

    fn scale<L: Lanes>(self, lanes: L, _: &[Line], (): &(), _: usize) -> (L::F, L::F) {
        (lanes.splat(1.0), lanes.splat(0.0))
    }

    fn codes<L: Lanes>(self, lanes: L, _: &[Line], _: usize, _: usize) -> L::I {
        lanes.words(&[CODE_MAX; LINE_BYTES])
    }
}

/// The products of a run of the largest codes with a run of the largest activations: alone, and in twos.
struct LargestRun<'a, P, const CODES: usize> {
    format: PhantomData<P>,
    row: &'a [Block<CODES>],
}

impl<P: Panels, const CODES: usize> Work for LargestRun<'_, P, CODES> {
    type Out = Vec<Sixteen>;

    #[inline(always)]
    fn on<L: Lanes>(self, lanes: L) -> Vec<Sixteen> {
        if const { !L::PRODUCTS_PER_FORMAT } {
            let runs = Runs { weights: P::RUN, ..Runs::of::<P>() };
            return vec![shared_largest(lanes, (runs, P::CODE_MAX), self.row)];
        }
        let codes = [[lanes.words(&[P::CODE_MAX; LINE_BYTES]); PART_WORDS]; PARTS_MAX];
        let run: Run<L> = Run { codes, factors: (lanes.splat(1.0), lanes.splat(0.0)) };
        let mut alone = [[[0.0; LANES]]];
        add_to::<L, P, CODES, 1>(lanes, &[run], (&[self.row], (0, 0)), &mut alone);
        let mut all = alone.as_flattened().to_vec();
        if const { two_rows_fit::<L, P>(1, CODES) } {
            let mut two = [[[0.0; LANES]; 1]; 2];
            add_to_two::<L, P, CODES, 1>(lanes, &[run], (&[self.row; 2], (0, 0)), &mut two);
            all.extend(two.as_flattened());
        }
        if const { two_rows_fit::<L, P>(2, CODES) } {
            let mut twos = [[[0.0; LANES]; 2]; 2];
            add_to_two::<L, P, CODES, 2>(lanes, &[run; 2], (&[self.row; 2], (0, 0)), &mut twos);
            all.extend(twos.as_flattened());
        }
        all
    }
}

/// The same by the products that all formats share, which are compiled once for all of them here, too.
#[inline(never)]
fn shared_largest<L: Lanes, const CODES: usize>(
    lanes: L,
    (runs, code_max): (Runs, u8),
    row: &[Block<CODES>],
) -> Sixteen {
    let codes = [[i16::from(code_max); LANES]; WEIGHTS_MAX];
    let unit = Unit { codes, factors: [[[1.0; LANES], [0.0; LANES]]; RUNS_MAX] };
    let mut sums = [0.0; LANES];
    add_unit(lanes, (runs, &unit), row, &mut sums);
    sums
}

fn check_largest<P: Panels, const CODES: usize>(x: f32) {
    let block = Block::<CODES>::of(&[x; BLOCK]);
    // The float is the nearest one, and so is its product with the scale.
    let sum = (i32::from(P::CODE_MAX) - P::OFFSET) * block.sum(P::RUN, 0);
    for level in Level::all() {
        for sums in level.run(LargestRun { format: PhantomData::<P>, row: &[block] }) {
            let shape = (P::RUN, P::CODE_MAX, P::OFFSET);
            assert_eq!(sums, [sum as f32 * block.scale; LANES], "{level}, {shape:?}, {x}");
        }
    }
}

/// Checks shapes, and says which.
macro_rules! check_shapes {
    ($x:expr; $($run:literal $code_max:literal $offset:literal,)*) => {{
        $(
            check_largest::<Shape<$run, $code_max, $offset>, 1>($x);
            check_largest::<Shape<$run, $code_max, $offset>, 2>($x);
        )*
        [$(($run, $code_max, $offset)),*]
    }};
}

#[test]
fn no_sum_of_products_overflows() {
    fn shape<P: Panels>(_: P) -> (usize, u8, i32) {
        (P::RUN, P::CODE_MAX, P::OFFSET)
    }
    for x in [1.0, -1.0] {
        let checked = check_shapes! { x;
            16 3 0,
            16 7 4,
            16 63 32,
            16 86 43,
            32 15 0,
            32 15 8,
            32 24 12,
            32 30 15,
            32 31 0,
            32 31 16,
            32 86 43,
            32 124 62,
            32 240 127,
            32 255 128,
            64 3 0,
            64 7 0,
            64 15 0,
            64 31 0,
            64 63 0,
            64 255 0,
        };
        for format in &quant::FORMATS {
            if let Some(shape) = with_panels!(format, panels => shape(panels)) {
                assert!(checked.contains(&shape), "{}: {shape:?} is not checked", format.name);
            }
        }
    }
}
