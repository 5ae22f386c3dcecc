//! What prompts may take of a disk, and who goes for whom.

use fm_engine::{generate::Request, schedule::Pin};

use crate::{
    prefix::{answer, family_dir, request, tokens},
    prefix_disk::{ROOMY, Shelf, bit_for_bit, count},
    schedule::until,
};

#[test]
fn the_budget_is_a_ceiling_and_the_least_used_goes_first() {
    let dir = family_dir("qwen3_moe");
    let one = {
        let shelf = Shelf::new(ROOMY);
        let scheduler = shelf.start(&dir);
        answer(&scheduler, request(tokens(1, 120)));
        scheduler.drain().unwrap();
        shelf.bytes()
    };
    let shelf = Shelf::new(one * 7 / 2);
    let named =
        |seed| Request { pin: Pin::Conversation("mine".to_owned()), ..request(tokens(seed, 120)) };
    let scheduler = shelf.start(&dir);
    let spilled = || count(&scheduler.activity().prefixes.spilled_bytes);
    for seed in 0..8 {
        let before = spilled();
        answer(&scheduler, if seed == 0 { named(seed) } else { request(tokens(seed, 120)) });
        until(|| spilled() > before);
        assert!(shelf.bytes() <= shelf.bytes_max, "{} of {}", shelf.bytes(), shelf.bytes_max);
    }
    assert_eq!(count(&scheduler.activity().prefixes.evicted_from_disk), 5, "three have room");
    scheduler.drain().unwrap();
    let scheduler = shelf.start(&dir);
    let there = |seed| answer(&scheduler, request(tokens(seed, 120))).restored > 0;
    assert_eq!([0, 6, 7, 5].map(there), [true, true, true, false], "the named one stays");
    scheduler.drain().unwrap();
    // What is read stays longer than what was written later, and the next program knows: 0, 7 and 5 are there.
    let scheduler = shelf.start(&dir);
    assert!(answer(&scheduler, request(tokens(7, 120))).restored > 0);
    scheduler.drain().unwrap();
    let scheduler = shelf.start(&dir);
    answer(&scheduler, request(tokens(9, 120)));
    scheduler.drain().unwrap();
    let scheduler = shelf.start(&dir);
    assert!(answer(&scheduler, request(tokens(7, 120))).restored > 0);
    scheduler.drain().unwrap();
    assert!(shelf.bytes() <= shelf.bytes_max);
    assert_eq!(*shelf.notices.lock().unwrap(), [""; 0], "nothing is unusual about that");
}

#[test]
fn what_would_never_be_read_is_not_written() {
    for name in ["qwen3_moe", "qwen3_5_moe"] {
        let shelf = Shelf::new(ROOMY);
        let scheduler = shelf.start(&family_dir(name));
        answer(&scheduler, request(tokens(1, 40)));
        scheduler.drain().unwrap();
        assert_eq!(shelf.bytes(), 0, "{name}");
        let scheduler = shelf.start(&family_dir(name));
        answer(&scheduler, request(tokens(1, 80)));
        scheduler.drain().unwrap();
        assert!(shelf.bytes() > 0, "{name}");
    }
}

#[test]
fn what_goes_for_a_smaller_budget_is_said_and_what_never_fits_is_said_once() {
    let dir = family_dir("qwen3_moe");
    let mut shelf = Shelf::new(ROOMY);
    let scheduler = shelf.start(&dir);
    for seed in 0..3 {
        answer(&scheduler, request(tokens(seed, 120)));
    }
    scheduler.drain().unwrap();
    let said = |shelf: &Shelf| std::mem::take(&mut *shelf.notices.lock().unwrap());
    let whole = shelf.bytes();
    for (bytes_max, removed) in [(whole, 0), (whole * 2 / 3 + 1, 1), (whole / 3 + 1, 1)] {
        shelf.bytes_max = bytes_max;
        shelf.start(&dir).drain().unwrap();
        let notices = said(&shelf);
        assert_eq!(notices.len(), removed, "{notices:?}");
        assert!(notices.iter().all(|notice| notice.starts_with("removed 1 kept prompts: ")));
    }
    shelf.bytes_max = whole / 6;
    let scheduler = shelf.start(&dir);
    for seed in 3..6 {
        answer(&scheduler, request(tokens(seed, 120)));
    }
    scheduler.drain().unwrap();
    let notices = said(&shelf);
    assert!(notices[0].starts_with("removed 1 kept prompts: "), "{notices:?}");
    assert!(notices[1].starts_with("a prompt of ") && notices.len() == 2, "{notices:?}");
    assert_eq!(shelf.bytes(), 0);
}

#[test]
fn what_was_wanted_from_the_beginning_stays_longest() {
    let dir = family_dir("qwen3_next");
    let shelf = Shelf::new(ROOMY);
    let base = tokens(1, 100);
    let prefill = |_| Request {
        pin: Pin::Prefilled,
        max_tokens: Some(0),
        ..request([base.as_slice(), &[3]].concat())
    };
    for round in 0..2 {
        let scheduler = shelf.start(&dir);
        let first = answer(&scheduler, prefill(round));
        assert_eq!((first.tokens.len(), first.restored), (0, 100 * round));
        for seed in 10..30 {
            let named = Pin::Conversation(seed.to_string());
            answer(&scheduler, Request { pin: named, ..request(tokens(seed, 200)) });
        }
        let asked = request([base.as_slice(), &tokens(2, 20)].concat());
        let got = answer(&scheduler, asked.clone());
        assert_eq!((got.reused, got.restored), (100, 0), "in memory all the time");
        bit_for_bit(&dir, &got, asked, "prefilled");
        scheduler.drain().unwrap();
    }
}
