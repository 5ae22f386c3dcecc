//! Bodies of requests, and how much of them there is at once: a limit for each of them alone lets many
//! clients fill the memory together.

use std::{future::poll_fn, pin::Pin, sync::Arc};

use axum::body::{Body, Bytes, HttpBody};
use fm_engine::schedule::Refused;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::{problem::Problem, workers::Workers};

/// Bytes of a body.
pub(crate) const BODY_MAX: usize = 16 << 20;

/// Bytes of a body that are read although it is too long; one that says that it is longer is not begun.
const TOLD_MAX: usize = 4 * BODY_MAX;

/// What all bodies together may have beyond their [`FREE`] beginnings.
const ALL_MAX: usize = 64 << 20;

/// Bytes of every body that do not count: nobody keeps small requests out. With as many as there may be
/// connections, they are another 16 MiB.
const FREE: usize = 64 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Bodies {
    /// What is left.
    room: Arc<Semaphore>,
    /// Whether the server ends.
    ends: watch::Sender<bool>,
}

/// A body, and its share until it has been read.
#[derive(Debug)]
pub(crate) struct Taken {
    bytes: Vec<u8>,
    share: Option<OwnedSemaphorePermit>,
}

impl Taken {
    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Reads it in this place. Who waits for that and leaves is forgotten, but place and share are taken until it has
    /// been read all the same.
    pub(crate) async fn read<T: Send + 'static>(
        self,
        (workers, place): (&Workers, OwnedSemaphorePermit),
        read: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let work = move || {
            // By their names: a closure takes no more of what is around it.
            let (Self { bytes, share: _share }, _place) = (self, place);
            read(&bytes)
        };
        workers.done(work).await.ok_or(Problem::Gone)?
    }
}

impl Default for Bodies {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(ALL_MAX)), ends: watch::Sender::new(false) }
    }
}

impl Bodies {
    /// Waits for no body any more.
    pub(crate) fn end(&self) {
        self.ends.send_replace(true);
    }

    /// Takes a body in as it comes. One that is too long, or that there is no room for, is read on all the
    /// same up to [`TOLD_MAX`], or its client would find a closed connection instead of the answer.
    pub(crate) async fn take(&self, mut body: Body) -> Result<Taken, Problem> {
        let mut taken = Ok(Taken { bytes: Vec::new(), share: None });
        if body.size_hint().lower() > TOLD_MAX as u64 {
            return Err(Problem::BodyTooLong { max: BODY_MAX });
        }
        let (mut length, mut ends) = (0, self.ends.subscribe());
        loop {
            let frame = tokio::select! {
                biased;
                frame = next(&mut body) => frame?,
                _ = ends.wait_for(|ends| *ends) => return Err(Refused::Closed.into()),
            };
            let Some(frame) = frame else { break };
            length += frame.len();
            if length > TOLD_MAX {
                return Err(Problem::BodyTooLong { max: BODY_MAX });
            }
            if length > BODY_MAX {
                taken = Err(Problem::BodyTooLong { max: BODY_MAX });
                continue;
            }
            taken = taken.and_then(|mut taken| {
                let counted = taken.bytes.len().max(FREE);
                self.grow(&mut taken.share, length.saturating_sub(counted))?;
                taken.bytes.extend_from_slice(&frame);
                Ok(taken)
            });
        }
        taken
    }

    fn grow(&self, share: &mut Option<OwnedSemaphorePermit>, more: usize) -> Result<(), Problem> {
        if more == 0 {
            return Ok(());
        }
        let crowded = |_| Problem::BodiesTooMany { max: ALL_MAX };
        let more = u32::try_from(more).map_err(|_| Problem::BodyTooLong { max: BODY_MAX })?;
        let more = Arc::clone(&self.room).try_acquire_many_owned(more).map_err(crowded)?;
        match share {
            Some(share) => share.merge(more),
            None => *share = Some(more),
        }
        Ok(())
    }
}

async fn next(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Err(_)) => return Err(Problem::BodyBroken),
            // What is no data is a trailer, which says nothing here.
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, task::Poll};

    use super::*;

    #[test]
    fn who_leaves_has_a_share_until_the_body_has_been_read() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (bodies, places) = (Bodies::default(), Arc::new(Semaphore::new(1)));
            let body = bodies.take(Body::from(vec![0; FREE + 1000])).await.unwrap();
            let left = || (bodies.room.available_permits(), places.available_permits());
            let place = Arc::clone(&places).acquire_owned().await.unwrap();
            let ((begin, begun), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
            let workers = Workers::start(1).unwrap();
            let mut reading = Box::pin(body.read((&workers, place), move |bytes| {
                begin.send(bytes.len()).unwrap();
                let _ = ended.recv();
                Ok(())
            }));
            let polled = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            assert_eq!(begun.recv(), Ok(FREE + 1000));
            drop(reading);
            assert_eq!(left(), (ALL_MAX - 1000, 0));
            drop(end);
            while left() != (ALL_MAX, 1) {
                tokio::task::yield_now().await;
            }
        });
    }
}
