//! A slot: nobody reads it while it is written, and everybody reads what was written last.

use loom::{
    cell::UnsafeCell,
    sync::Arc,
    thread::{self, JoinHandle},
};

use crate::{explore, word::Word};

/// What a chunk holds of a slot. Loom's cell fails where a reader and a writer meet in it, and where a
/// thread does not see what another did to it before.
struct Slot {
    word: Word,
    /// One number instead of a record's bytes.
    bytes: UnsafeCell<u32>,
}

impl Slot {
    fn with(word: Word) -> Arc<Self> {
        Arc::new(Self { word, bytes: UnsafeCell::new(0) })
    }

    /// What the holder of a lease does, and drops it.
    fn read(&self) -> u32 {
        let found = self.bytes.with(|bytes| unsafe { *bytes });
        self.word.end_read();
        found
    }

    /// What the holder of a buffer does, and drops it.
    fn fill(&self, record: u32) {
        self.bytes.with_mut(|bytes| unsafe { *bytes = record });
        self.word.end_write();
    }
}

/// A lease that another thread reads and drops.
fn lease_to_another(slot: &Arc<Slot>) -> JoinHandle<u32> {
    assert!(slot.word.read(), "nobody writes");
    let slot = Arc::clone(slot);
    thread::spawn(move || slot.read())
}

/// The owner takes the slot as soon as it is idle, as a store that evicts.
#[test]
fn a_slot_is_refilled_when_its_last_reader_has_read() {
    explore(|| {
        let slot = Slot::with(Word::idle());
        assert!(slot.word.write());
        slot.fill(1);
        let readers = [lease_to_another(&slot), lease_to_another(&slot)];
        while !slot.word.is_idle() {
            thread::yield_now();
        }
        assert!(slot.word.write(), "what is idle stays so: only the owner takes it");
        slot.fill(2);
        assert!(slot.word.read());
        assert_eq!(slot.read(), 2);
        assert_eq!(readers.map(|reader| reader.join().unwrap()), [1, 1]);
    });
}

/// The owner takes it or not, in the midst of readers that take it themselves.
#[test]
fn nobody_reads_what_is_being_written() {
    explore(|| {
        let slot = Slot::with(Word::idle());
        let reader = || {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.word.read().then(|| slot.read()))
        };
        let readers = [reader(), reader()];
        let refilled = slot.word.write();
        if refilled {
            // Not `is_idle`, which acquires, and must not do so for `write`.
            assert!(!slot.word.read() && !slot.word.write());
            slot.fill(1);
        }
        let last = slot.word.read().then(|| slot.read());
        assert_eq!(last, Some(u32::from(refilled)), "readers keep no reader out");
        for reader in readers {
            let found = reader.join().unwrap();
            assert!(found.is_none_or(|found| found <= u32::from(refilled)));
        }
        assert!(slot.word.is_idle(), "all have given it back");
    });
}

/// A reader thread fills the slot; the owner finds that it has, and leases it to others.
#[test]
fn who_gets_a_lease_sees_what_another_thread_has_filled_in() {
    explore(|| {
        let slot = Slot::with(Word::writing());
        assert!(!slot.word.is_idle());
        let own = Arc::clone(&slot);
        let filler = thread::spawn(move || own.fill(1));
        while !slot.word.read() {
            thread::yield_now();
        }
        let other = lease_to_another(&slot);
        assert_eq!(slot.read(), 1);
        assert_eq!(other.join().unwrap(), 1);
        filler.join().unwrap();
        assert!(slot.word.write(), "both have given it back");
    });
}
