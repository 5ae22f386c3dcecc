//! What `bench` writes is what it was told to, and nothing a model would say.

use fm_engine::{measure::walk::Walk, options::EngineOptions};
use xxhash_rust::xxh3::xxh3_128;

use crate::harness::{bits, open, prompt};

/// Tokens of [`prompt`] that are a prompt here.
const PROMPT: usize = 20;

#[test]
fn windows_are_of_the_text_whoever_writes_beside_it() {
    let mut engine = open(&EngineOptions::default());
    let text = prompt();
    let other: Vec<u32> = text.iter().rev().copied().collect();
    let texts = [text.clone(), other.clone()];
    let (mut walk, prompted) = Walk::start(&mut engine, texts, PROMPT).unwrap();
    assert_eq!([prompted[0].tokens, prompted[1].tokens], [PROMPT; 2]);
    let windows = [20, 30].map(|steps| walk.write(&mut engine, steps).unwrap());
    walk.end(&mut engine);
    assert_eq!(windows.each_ref().map(|window| window.position), [20, 40]);

    let vocab = engine.runner.vocab();
    let mut dictated = |text: &[u32]| {
        let session = engine.runner.open(128).unwrap();
        let bits = bits(engine.runner.as_mut(), session, text, 1);
        engine.runner.close(session);
        bits
    };
    let of_each = [dictated(&text), dictated(&other)];
    for (window, steps) in windows.iter().zip([20..40, 40..70]) {
        let rows = steps
            .clone()
            .flat_map(|at| of_each.each_ref().map(|bits| &bits[at * vocab..][..vocab]));
        let bytes: Vec<u8> = rows.flatten().flat_map(|bits| bits.to_le_bytes()).collect();
        assert_eq!(window.logits_hash, xxh3_128(&bytes));
        let alone = of_each.each_ref().map(|bits| {
            let rows = bits[steps.start * vocab..steps.end * vocab].iter();
            xxh3_128(&rows.flat_map(|bits| bits.to_le_bytes()).collect::<Vec<_>>())
        });
        assert_eq!(window.session_hashes, alone, "what each would have alone");
    }
}
