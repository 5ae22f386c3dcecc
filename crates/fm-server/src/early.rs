//! Before there is a model: who asks how the server is hears that it is loading, and everybody else waits
//! until it is there.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Between two looks at who has come and what they say.
const LOOK: Duration = Duration::from_millis(20);

/// Connections that wait; the system lets others wait.
const WAITING_MAX: usize = 64;

/// Connections beside those: who says something there is told that the server is loading, whatever it is. Where these
/// are taken, too, the first that has said nothing makes room for who comes: nobody keeps a supervisor from asking.
const ASKING_MAX: usize = 8;

/// What the question begins with.
const QUESTION: &[u8] = b"GET /health";

const ANSWER: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
                      retry-after: 1\r\ncontent-length: 20\r\nconnection: close\r\n\r\n\
                      {\"status\":\"loading\"}";

/// See the module.
#[derive(Debug)]
pub(crate) struct Early {
    thread: Option<JoinHandle<Vec<TcpStream>>>,
    ends: Arc<AtomicBool>,
}

impl Early {
    /// Begins to take connections.
    pub(crate) fn start(listener: &TcpListener) -> io::Result<Self> {
        let (listener, ends) = (listener.try_clone()?, Arc::<AtomicBool>::default());
        let end = Arc::clone(&ends);
        let thread = thread::Builder::new().name("loading".to_owned());
        let thread = thread.spawn(move || take(&listener, &end))?;
        Ok(Self { thread: Some(thread), ends })
    }

    /// Takes no more; those who wait.
    pub(crate) fn end(mut self) -> Vec<TcpStream> {
        self.stop()
    }

    fn stop(&mut self) -> Vec<TcpStream> {
        self.ends.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        self.stop();
    }
}

/// `listener` does not block, and neither do those who come.
fn take(listener: &TcpListener, ends: &AtomicBool) -> Vec<TcpStream> {
    let mut waiting = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let full = waiting.len() >= WAITING_MAX + ASKING_MAX;
        let silent = waiting.iter().position(says_nothing).filter(|_| full);
        if (!full || silent.is_some())
            && let Ok((stream, _)) = listener.accept()
        {
            if let Some(silent) = silent {
                waiting.remove(silent);
            }
            waiting.extend(stream.set_nonblocking(true).map(|()| stream));
            continue;
        }
        let mut places = 0..;
        waiting.retain(|stream| !has_gone(stream, places.next() >= Some(WAITING_MAX)));
        thread::park_timeout(LOOK);
    }
    waiting
}

fn says_nothing(stream: &TcpStream) -> bool {
    stream.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Whether a client has left, or has been told what it wanted to know, or that there is no room to wait.
fn has_gone(mut stream: &TcpStream, no_room: bool) -> bool {
    let mut said = [0; 4096];
    match stream.peek(&mut said) {
        Ok(0) => return true,
        Ok(length) if no_room || asks(&said[..length]) => {}
        _ => return false,
    }
    // What is read is not lost: whoever closes before that breaks the connection off.
    let told = stream.read(&mut said).and_then(|_| stream.write_all(ANSWER.as_bytes()));
    drop(told.and_then(|()| stream.shutdown(Shutdown::Write)));
    true
}

fn asks(said: &[u8]) -> bool {
    let behind = said.strip_prefix(QUESTION).and_then(|rest| rest.first());
    behind.is_some_and(|next| matches!(next, b' ' | b'?'))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn early() -> (Early, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        (Early::start(&listener).unwrap(), listener.local_addr().unwrap())
    }

    fn say(at: SocketAddr, what: &str) -> TcpStream {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(what.as_bytes()).unwrap();
        stream
    }

    #[test]
    fn it_is_loading_for_who_asks_and_others_wait() {
        let (early, at) = early();
        let say = |what: &str| say(at, what);
        let _waits = say("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let _silent = say("");
        drop(say(""));
        for _ in 0..2 {
            let mut told = String::new();
            let mut asks = say("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
            asks.read_to_string(&mut told).unwrap();
            let (head, body) = told.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 503") && head.contains("content-length: 20"));
            assert_eq!(body, "{\"status\":\"loading\"}");
            assert_eq!(body.len(), 20);
        }
        assert_eq!(early.end().len(), 2, "who waits, and who has said nothing yet");
    }

    #[test]
    fn who_waits_for_the_model_keeps_nobody_from_asking() {
        let (early, at) = early();
        let say = |what: &str| say(at, what);
        let told = |mut stream: TcpStream| {
            let mut told = String::new();
            stream.read_to_string(&mut told).unwrap();
            told
        };
        let ask = |path: &str| say(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
        let waiting: Vec<_> = (0..WAITING_MAX).map(|_| ask("/healthz")).collect();
        for path in ["/health", "/health?x", "/v1/models"] {
            assert!(told(ask(path)).starts_with("HTTP/1.1 503"), "{path}");
        }
        assert_eq!(early.end().len(), waiting.len());
    }

    #[test]
    fn who_says_nothing_keeps_nobody_from_asking() {
        let (early, at) = early();
        let connect = || TcpStream::connect(at).unwrap();
        let mut waits = connect();
        waits.write_all(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let _silent: Vec<_> = (0..WAITING_MAX + ASKING_MAX).map(|_| connect()).collect();
        let mut asks = connect();
        asks.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        asks.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut told = String::new();
        asks.read_to_string(&mut told).unwrap();
        assert!(told.starts_with("HTTP/1.1 503"), "{told}");
        let waiting = early.end();
        let speaks = |stream: &&TcpStream| !says_nothing(stream);
        assert_eq!(waiting.iter().filter(speaks).count(), 1, "who waits has kept its place");
    }
}
