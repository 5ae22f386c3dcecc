//! Signals by which a keyboard, a supervisor or a terminal that closes asks the program to end.

use std::io;
#[cfg(unix)]
use std::{fs, sync::mpsc, thread};

#[cfg(unix)]
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

/// Does `act` for every one that comes, in a thread of its own. Those that whoever started the program has it ignore,
/// as `nohup` does with the closing of a terminal, and shells do with Ctrl-C for what runs in the background, stay ignored.
///
/// # Errors
/// If the system gives no handler or no thread: signals do what they always do then.
#[cfg(unix)]
pub(crate) fn on_each(mut act: impl FnMut() + Send + 'static) -> io::Result<()> {
    let ignored = ignored();
    let heard = move |signal: &i32| ignored >> (signal - 1) & 1 == 0;
    let (tell, told) = mpsc::channel();
    // A handler without a thread would swallow them.
    let hear =
        move || match Signals::new([SIGINT, SIGTERM, SIGHUP].iter().filter(|signal| heard(signal)))
        {
            Ok(mut signals) => {
                let _ = tell.send(Ok(()));
                signals.forever().for_each(|_| act());
            }
            Err(error) => {
                let _ = tell.send(Err(error));
            }
        };
    thread::Builder::new().name("signals".to_owned()).spawn(hear)?;
    told.recv().map_err(io::Error::other)?
}

#[cfg(not(unix))]
pub(crate) fn on_each(act: impl FnMut() + Send + 'static) -> io::Result<()> {
    ctrlc::set_handler(act).map_err(io::Error::other)
}

/// The signals that the program ignores, the first one in the lowest bit; none where the system does not tell.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
