//! What people see: the answer on stdout, everything else on stderr, colour only on a terminal.

use std::{
    borrow::Cow,
    fmt,
    io::{self, IsTerminal, Write},
    ops::ControlFlow,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use fm_convert::ConvertError;
use fm_engine::EngineError;
use fm_hub::HubError;
use fm_model::LoadError;
use fm_server::ServeError;
use fm_text::Channel;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{hub, places, signals};

const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

/// Says a line on stderr, which may be closed or full: unlike `eprintln!`, which would end the program.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::console::say_part(format_args!("{}\n", format_args!($($words)*)))
    };
}
pub(crate) use say;

/// Says something on stderr without ending the line. Nobody reads it where that fails.
pub(crate) fn say_part(words: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(words);
}

/// Prints a streamed answer.
#[derive(Debug)]
pub(crate) struct AnswerStream {
    thoughts: Thoughts,
    latest: Option<Channel>,
    ends_with_newline: bool,
}

/// How what was thought is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thoughts {
    Dimmed,
    Plain,
    Hidden,
}

impl AnswerStream {
    /// Shows what was thought on stderr.
    pub(crate) fn new() -> Self {
        let dimmed = io::stderr().is_terminal() && places::colour();
        Self::with(if dimmed { Thoughts::Dimmed } else { Thoughts::Plain })
    }

    /// Shows the answer alone.
    pub(crate) fn of_answer() -> Self {
        Self::with(Thoughts::Hidden)
    }

    fn with(thoughts: Thoughts) -> Self {
        Self { thoughts, latest: None, ends_with_newline: true }
    }

    /// Shows a piece of text where its channel belongs.
    pub(crate) fn show(&mut self, channel: Channel, text: &str) -> io::Result<()> {
        if channel == Channel::Thinking && self.thoughts == Thoughts::Hidden {
            return Ok(());
        }
        if self.latest == Some(Channel::Thinking) && channel == Channel::Answer {
            // The answer starts on a line of its own where both meet on one screen.
            say!("");
        }
        self.latest = Some(channel);
        match channel {
            Channel::Thinking if self.thoughts == Thoughts::Dimmed => {
                say_part(format_args!("{DIM}{text}{RESET}"));
            }
            Channel::Thinking => say_part(format_args!("{text}")),
            Channel::Answer => {
                self.ends_with_newline = text.ends_with('\n');
                let mut stdout = io::stdout().lock();
                stdout.write_all(text.as_bytes())?;
                stdout.flush()?;
            }
        }
        Ok(())
    }

    /// Ends the last line.
    pub(crate) fn end(&self) -> io::Result<()> {
        match self.latest {
            Some(Channel::Answer) if !self.ends_with_newline => writeln!(io::stdout()),
            Some(Channel::Thinking) => {
                say!("");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Lines on their way to stderr, which may be closed, or stand still: a pipe that nobody reads, a
/// terminal after Ctrl-S. Whoever says something never waits for it.
#[derive(Debug)]
pub(crate) struct Lines {
    to: SyncSender<Option<String>>,
    ended: Receiver<()>,
}

/// Lines that may wait; what is said beyond is lost.
const LINES_MAX: usize = 1024;

/// How long the last lines are waited for.
const LINES_END: Duration = Duration::from_secs(1);

impl Lines {
    pub(crate) fn new() -> io::Result<Self> {
        let (to, lines) = mpsc::sync_channel::<Option<String>>(LINES_MAX);
        let (end, ended) = mpsc::channel();
        thread::Builder::new().spawn(move || {
            let _end: Sender<()> = end;
            while let Ok(Some(line)) = lines.recv() {
                let _ = writeln!(io::stderr(), "{line}");
            }
        })?;
        Ok(Self { to, ended })
    }

    /// What says a line.
    pub(crate) fn teller(&self) -> impl Fn(String) + Send + Sync + 'static {
        let to = self.to.clone();
        move |line| drop(to.try_send(Some(line)))
    }

    /// Returns when everything has been said, if that is soon.
    pub(crate) fn end(self) {
        drop(self.to.try_send(None));
        let _ = self.ended.recv_timeout(LINES_END);
    }
}

/// Whether Ctrl-C was pressed: there is one keyboard.
static PRESSED: AtomicBool = AtomicBool::new(false);

/// From when on a second Ctrl-C is one: a terminal and a supervisor tell of the same one within milliseconds.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Ctrl-C: the first one asks the work to end cleanly, the second one does not wait.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(&'static AtomicBool);

/// What a shell expects of a program that Ctrl-C ended: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// The user has ended the work, and what there was of it has been shown.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Interrupt {
    /// Takes Ctrl-C over; where that fails, it ends the program the hard way as before.
    pub(crate) fn install() -> Self {
        Self::install_with(|| ())
    }

    /// The same; the first Ctrl-C does `also`.
    pub(crate) fn install_with(also: impl Fn() + Send + 'static) -> Self {
        let mut first: Option<Instant> = None;
        let installed = signals::on_each(move || match first {
            None => {
                first = Some(Instant::now());
                PRESSED.store(true, Ordering::SeqCst);
                also();
            }
            Some(first) if first.elapsed() >= AGAIN_AFTER => leave(),
            Some(_) => {}
        });
        drop(installed);
        Self(&PRESSED)
    }

    /// Whether Ctrl-C was pressed.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Whether the work goes on, for what asks again and again.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Ends the program at once, as a shell expects it of one that was interrupted.
#[allow(clippy::exit)] // nothing of the work is to be kept
pub(crate) fn leave() {
    std::process::exit(i32::from(INTERRUPTED));
}

/// Whether the user has asked for the end of the work, which may be why it failed.
pub(crate) fn interrupted() -> bool {
    PRESSED.load(Ordering::SeqCst)
}

/// A progress bar on stderr, invisible where stderr is no terminal.
pub(crate) fn progress(what: &'static str, unit: Unit) -> ProgressBar {
    let bar = hidden_bar(what.to_owned(), unit);
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    bar
}

/// A progress bar that somebody else shows.
pub(crate) fn hidden_bar(what: String, unit: Unit) -> ProgressBar {
    let amounts = match unit {
        Unit::Share => "{percent:>3} %",
        Unit::Bytes => "{decimal_bytes} of {decimal_total_bytes} · {decimal_bytes_per_sec}",
    };
    let template = format!("{{msg}} {{wide_bar:.cyan}} {amounts} · {{eta}} left");
    let style = ProgressStyle::with_template(&template)
        .expect("the template is ours")
        .progress_chars("━╸ ");
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    bar.set_style(style);
    bar.set_message(what);
    bar
}

/// What a progress bar counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Share,
    Bytes,
}

/// An error of the program's own, and what may help against it.
#[derive(Debug)]
pub(crate) struct Hinted {
    pub(crate) said: String,
    pub(crate) hint: Option<&'static str>,
}

impl std::fmt::Display for Hinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for Hinted {}

/// What may help against an error.
pub(crate) fn hint(error: &anyhow::Error) -> Option<Cow<'static, str>> {
    error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<HubError>() {
            return hub::hint(error);
        }
        if let Some(error) = cause.downcast_ref::<Hinted>() {
            return error.hint.map(Cow::Borrowed);
        }
        if let Some(ServeError::Bind { .. }) = cause.downcast_ref::<ServeError>() {
            return Some(Cow::Borrowed(
                "choose another address with --host and --port; port 0 takes any that is free",
            ));
        }
        let engine = cause.downcast_ref::<EngineError>().and_then(EngineError::hint);
        engine.or_else(|| convert_hint(cause.downcast_ref::<ConvertError>()?)).map(Cow::Borrowed)
    })
}

fn convert_hint(error: &ConvertError) -> Option<&'static str> {
    Some(match error {
        ConvertError::Replaced { .. } | ConvertError::OtherTensors { .. } => {
            "if it was changed on purpose, `flash-moe verify --record MODEL` records it anew; else it is damaged: get it again"
        }
        ConvertError::NotRecorded { .. } | ConvertError::RecordDamaged { .. } => {
            "`flash-moe verify --record MODEL` reads the model once and records its checksums"
        }
        ConvertError::Cancelled => "finished layers are kept",
        ConvertError::Format(error) | ConvertError::Load(LoadError::Format(error)) => {
            return error.hint();
        }
        _ => return None,
    })
}

/// Whoever reads our output has gone: no error, `head` does that.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_errors = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io_errors.into_iter().any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Work that ended early because what is said of it cannot be said: that is an error even where only the reader has gone.
pub(crate) fn unfinished(error: io::Error, so: &str) -> anyhow::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return anyhow::anyhow!("nobody reads what is printed any more, so {so}");
    }
    error.into()
}

/// A number of things.
pub(crate) fn counted(count: impl Into<u64>, thing: &str) -> String {
    let count = count.into();
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Prints a value as JSON, on one line for programs, indented for people.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = if stdout.is_terminal() {
        serde_json::to_writer_pretty(&mut stdout, value)
    } else {
        serde_json::to_writer(&mut stdout, value)
    };
    // As what it was: `is_broken_pipe` looks for it.
    written.map_err(io::Error::from)?;
    Ok(writeln!(stdout)?)
}

/// Prints a value as one line of JSON: of a stream of them.
pub(crate) fn print_json_line(value: &serde_json::Value) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{value}")?;
    stdout.flush()
}
