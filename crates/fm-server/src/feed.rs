//! `GET /feed`: what the machine does, four times a second, for whoever watches.
//!
//! Everything is a counter that somebody else keeps anyway; who watches copies them and the page
//! subtracts. Nothing is computed while nobody does. It tells numbers, never text.

use std::{
    convert::Infallible,
    fmt::Write as _,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    extract::State,
    response::{Response, sse::Event},
};
use fm_engine::{ExpertMap, Glance};
use futures_core::Stream;
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Interval, MissedTickBehavior, interval},
};

use crate::{openai, problem::Problem, serve::App, stream};

/// Between two looks.
const TICK: Duration = Duration::from_millis(250);

/// Who may watch at once.
const WATCHERS_MAX: usize = 16;

/// Room for all who may watch.
pub(crate) fn watchers() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(WATCHERS_MAX))
}

/// One who watches.
struct Feed {
    app: Arc<App>,
    ticks: Interval,
    since: Instant,
    /// The experts as they were told last; empty before the first time.
    seen: Vec<Glance>,
    greeted: bool,
    _place: OwnedSemaphorePermit,
}

/// Tells of the machine until the client goes or the server ends.
pub(crate) async fn handle(State(app): State<Arc<App>>) -> Response {
    let Ok(place) = Arc::clone(&app.watchers).try_acquire_owned() else {
        return openai::refuse(&Problem::Watched { max: WATCHERS_MAX });
    };
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (since, seen) = (Instant::now(), Vec::new());
    stream::events(Feed { app, ticks, since, seen, greeted: false, _place: place })
}

impl Stream for Feed {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !self.greeted {
            self.greeted = true;
            let machine = machine(&self.app).to_string();
            return Poll::Ready(Some(Ok(Event::default().event("machine").data(machine))));
        }
        ready!(self.ticks.poll_tick(context));
        // A server that ends waits for its answers, but not for those who watch.
        let open = self.app.submit.is_open();
        Poll::Ready(open.then(|| Ok(Event::default().data(self.look().to_string()))))
    }
}

/// What stays as it is.
fn machine(app: &App) -> Value {
    let (gauges, sampling) = (&app.watch.gauges, &app.model.sampling);
    json!({
        "model": app.model.name,
        "family": gauges.model_type,
        "numerics": gauges.numerics,
        "lossy": gauges.lossy,
        "threads": gauges.threads,
        "reader": gauges.reader,
        "context": app.model.context,
        "budget_bytes": gauges.budget_bytes,
        "slot_bytes": gauges.slot_bytes,
        "step_bytes": gauges.step_bytes,
        "expert_bytes": gauges.expert_bytes,
        "limits": gauges.limits,
        "holds_everything": gauges.holds_everything,
        "experts": gauges.map().layers(),
        "sampling": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
        },
    })
}

impl Feed {
    /// What has become of it.
    fn look(&mut self) -> Value {
        let app = &self.app;
        let (activity, gauges) = (&app.watch.activity, &app.watch.gauges);
        let stats = gauges.stats();
        let map = changes(gauges.map(), &mut self.seen);
        json!({
            "ms": self.since.elapsed().as_millis() as u64,
            "steps": activity.steps.load(Ordering::Relaxed),
            "written": activity.written_tokens.load(Ordering::Relaxed),
            "prompt_layers": app.texts.prompt_layers(),
            "hits": stats.hits,
            "misses": stats.misses(),
            "read_bytes": stats.read_bytes,
            "held_bytes": gauges.held_bytes(),
            "waiting": app.submit.waiting(),
            "texts": app.texts.list(),
            "map": map,
        })
    }
}

/// What happened to every expert since the last time, by layer, then by expert: a letter, with the
/// number of neighbours of whom the same is true before it. `.` is nothing; `a` and the letters after
/// it are the sum of 1 for resident, 2 for used, 4 for read and 8 for evicted.
fn changes(map: &ExpertMap, seen: &mut Vec<Glance>) -> String {
    let first = seen.is_empty();
    if first {
        seen.extend(map.glances());
    }
    let letters = map.glances().zip(seen).map(|(now, before)| {
        let before = std::mem::replace(before, now);
        if now == before && !first {
            return '.';
        }
        let happened = u8::from(now.is_resident())
            + 2 * u8::from(now.was_used_since(before))
            + 4 * u8::from(now.was_read_since(before))
            + 8 * u8::from(now.was_evicted_since(before));
        char::from(b'a' + happened)
    });
    runs(letters)
}

/// Letters with the number of their repetitions. Nothing at the end is left out.
fn runs(letters: impl Iterator<Item = char>) -> String {
    let mut text = String::new();
    let mut push = |letter: char, count: usize| {
        let _ = match count {
            0 => Ok(()),
            1 => write!(text, "{letter}"),
            _ => write!(text, "{count}{letter}"),
        };
    };
    let (mut latest, mut count) = ('.', 0);
    for letter in letters {
        if letter != latest {
            push(latest, count);
            (latest, count) = (letter, 0);
        }
        count += 1;
    }
    if latest != '.' {
        push(latest, count);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_come_with_their_number() {
        for (letters, runs_of) in [
            ("", ""),
            ("....", ""),
            ("a", "a"),
            ("aab", "2ab"),
            ("..h...", "2.h"),
            ("bbbbbbbbbbbb.b", "12b.b"),
        ] {
            assert_eq!(runs(letters.chars()), runs_of, "{letters}");
        }
    }
}
