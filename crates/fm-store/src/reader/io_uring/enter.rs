//! Entering the kernel: what it refuses for the moment is asked again, what it refuses for good is an error.

use std::{io, thread, time::Duration};

use io_uring::IoUring;

/// Refusals in a row that are borne: with their pauses more than eight seconds.
const REFUSALS_MAX: u32 = 40;

/// Pauses double from 1 ms up to this.
const PAUSE_MAX: Duration = Duration::from_millis(256);

/// What is asked of the kernel. A test answers in its place.
pub(super) trait Kernel: Send {
    /// Hands over what is queued, and waits until so many completions are there.
    fn enter(&mut self, ring: &IoUring, completions: usize) -> io::Result<usize> {
        ring.submit_and_wait(completions)
    }

    fn pause(&mut self, pause: Duration) {
        thread::sleep(pause);
    }
}

/// The kernel itself.
pub(super) struct Linux;

impl Kernel for Linux {}

/// See the file.
pub(super) struct Entrance {
    kernel: Box<dyn Kernel>,
    /// Since it was last let in.
    refusals: u32,
}

impl Entrance {
    pub(super) fn new(kernel: Box<dyn Kernel>) -> Self {
        Self { kernel, refusals: 0 }
    }

    /// Hands over what is queued. What this may fail with, [`Self::wait`] meets again.
    pub(super) fn submit(&mut self, ring: &IoUring) {
        let _ = self.kernel.enter(ring, 0);
    }

    /// Blocks until the kernel has something to say, or may take what it has refused: the caller takes
    /// completions, if there are any, and waits again.
    pub(super) fn wait(&mut self, ring: &IoUring) -> io::Result<()> {
        let Err(error) = self.kernel.enter(ring, 1) else {
            self.refusals = 0;
            return Ok(());
        };
        match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            // No memory for a request, or too many completions that nobody has taken.
            io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
                if self.refusals < REFUSALS_MAX =>
            {
                // Completions may be all that it waits for: no pause at first.
                if let Some(doublings) = self.refusals.checked_sub(1) {
                    let pause = Duration::from_millis(1 << doublings.min(10));
                    self.kernel.pause(pause.min(PAUSE_MAX));
                }
                self.refusals += 1;
                Ok(())
            }
            _ => Err(error),
        }
    }
}
