//! No format says codes smaller than they are, and no product of the largest overflows.

use std::marker::PhantomData;

use fm_format::quant;

use super::{
    many::{Run, add_to, add_to_two, two_rows_fit},
    *,
};
use crate::cpu::Level;

/// The largest code of some units of any bytes.
struct LargestCode<P>(P);

impl<P: Panels> Work for LargestCode<P> {
    type Out = u8;

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

/// The products of a run of the largest codes with a run of the largest activations: alone, and in twos.
struct LargestRun<'a, P, const CODES: usize> {
    format: PhantomData<P>,
    row: &'a [Block<CODES>],
}

impl<P: Panels, const CODES: usize> Work for LargestRun<'_, P, CODES> {
    type Out = Vec<Sixteen>;

    fn on<L: Lanes>(self, lanes: L) -> Vec<Sixteen> {
        let codes = [[lanes.words(&[P::CODE_MAX; LINE_BYTES]); PART_WORDS]; PARTS_MAX];
        let run: Run<L> = Run { codes, factors: (lanes.splat(1.0), lanes.splat(0.0)) };
        let mut alone = [[0.0; LANES]];
        add_to::<L, P, CODES, 1>(lanes, &[run], (self.row, (0, 0)), &mut alone);
        let mut all = alone.to_vec();
        if const { two_rows_fit::<L, P>(2, CODES) } {
            let mut twos = [[[0.0; LANES]; 2]; 2];
            add_to_two::<L, P, CODES, 2>(lanes, &[run; 2], (&[self.row; 2], (0, 0)), &mut twos);
            all.extend(twos.as_flattened());
        }
        all
    }
}

fn check_largest<P: Panels, const CODES: usize>(_: P, x: f32, name: &str) {
    let block = Block::<CODES>::of(&[x; BLOCK]);
    // The float is the nearest one, and so is its product with the scale.
    let sum = (i32::from(P::CODE_MAX) - P::OFFSET) * block.sum(P::RUN, 0);
    for level in Level::all() {
        for sums in level.run(LargestRun { format: PhantomData::<P>, row: &[block] }) {
            assert_eq!(sums, [sum as f32 * block.scale; LANES], "{level}, {name}, {x}");
        }
    }
}

#[test]
fn no_sum_of_products_overflows() {
    for (format, x) in quant::FORMATS.iter().flat_map(|format| [(format, 1.0), (format, -1.0)]) {
        with_panels!(format, panels => {
            check_largest::<_, 1>(panels, x, format.name);
            check_largest::<_, 2>(panels, x, format.name);
        });
    }
}
