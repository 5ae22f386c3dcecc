//! Threads beside that of the network, where bodies are read. They are there from the beginning: one that is started
//! when a request comes may be refused by the system, and the request with it.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// See the module. They end when nobody can bring work any more.
#[derive(Debug)]
pub(crate) struct Workers(mpsc::Sender<Work>);

impl Workers {
    /// So many threads.
    ///
    /// # Errors
    /// If the system gives fewer.
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let (work, queue) = mpsc::channel::<Work>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..count {
            let queue = Arc::clone(&queue);
            let next = move || queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let until_nobody_comes = move || {
                while let Ok(work) = next() {
                    // Whoever brought it hears of a panic by hearing nothing.
                    let _ = catch_unwind(AssertUnwindSafe(work));
                }
            };
            thread::Builder::new().name("reader".to_owned()).spawn(until_nobody_comes)?;
        }
        Ok(Self(work))
    }

    /// None, for whoever reads in its own thread.
    pub(crate) fn none() -> Self {
        Self(mpsc::channel().0)
    }

    /// What came of some work; nothing if it panicked. Who leaves meanwhile does not end it.
    pub(crate) async fn done<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = oneshot::channel();
        let work = move || {
            let _ = tell.send(work());
        };
        self.0.send(Box::new(work)).ok()?;
        told.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_no_worker() {
        let workers = Workers::start(1).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            assert_eq!(workers.done(|| panic!("on purpose")).await, None::<()>);
            assert_eq!(workers.done(|| 7).await, Some(7));
            assert_eq!(Workers::none().done(|| 7).await, None);
        });
    }
}
