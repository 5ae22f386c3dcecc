//! A steady step allocates nothing: scratch is planned, guards are pooled, batches are reused.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::{ops::ControlFlow, path::Path};

use fm_engine::{Engine, Load, Places, options::EngineOptions};
use fm_model::runner::{Batch, Row, RowInput, Wants};
use fm_testkit::{
    counting_alloc::{CountingAlloc, global_allocations},
    golden::{demo_dir, golden_dir},
};

#[global_allocator]
static ALLOCATOR: CountingAlloc = CountingAlloc;

fn allocations_of_forty_steps(dir: &Path, slots: Option<usize>) -> u64 {
    let options = EngineOptions {
        memory: Some(300_000_000),
        context: Some(256),
        slots,
        threads: Some(2),
        ..EngineOptions::default()
    };
    let places = Places { root: "/".into(), cache_dir: None };
    let mut engine = Engine::open(dir, &options, Load::default(), &places).unwrap();
    let session = engine.runner.open(256).unwrap();
    let mut batch = Batch::default();
    // Routes settle within the first sixty tokens: slots and tickets have been used by then. On a busy
    // machine a thread may begin later, and a thread that begins allocates; what a step allocates
    // comes again in every window.
    let (mut before, mut least) = (0, u64::MAX);
    for position in 0..221 {
        let count = global_allocations().count;
        if position > 60 && position % 40 == 20 {
            least = least.min(count - before);
        }
        if position % 40 == 20 {
            before = count;
        }
        batch.rows.clear();
        batch.rows.push(Row {
            session,
            input: RowInput::Token(position * 7 % 50),
            position,
            wants: Wants { logits: true, hidden: false, checkpoint: position % 8 == 0 },
        });
        engine.runner.step(&batch, &mut |_| ControlFlow::Continue(())).unwrap();
    }
    least
}

#[test]
fn a_steady_step_allocates_nothing() {
    let latent = golden_dir("deepseek_v3").join("mlx-4bit");
    for (dir, few) in [(demo_dir(), 40), (latent, 5)] {
        let name = dir.display();
        assert_eq!(allocations_of_forty_steps(&dir, None), 0, "{name}: everything in slots");
        assert_eq!(allocations_of_forty_steps(&dir, Some(few)), 0, "{name}: experts come and go");
    }
}
