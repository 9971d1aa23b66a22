//! A service on this computer that answers as a test says, and remembers what it was asked.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sandbox_cloud::http::Url;

/// A request as it arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// The reaction of the service to a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Answer {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: String,
    },
    /// Sends the head and these pieces, with a pause before each, then ends the body.
    Chunks(Vec<(Duration, &'static str)>),
    /// Sends the head and half of a body, then ends the connection.
    HalfBody,
    /// Ends the connection without an answer.
    Drop,
    /// Keeps the connection and says nothing.
    Silence,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self::Answer { status, headers: Vec::new(), body: String::new() }
    }

    pub(crate) fn json(body: &str) -> Self {
        Self::Answer { status: 200, headers: Vec::new(), body: body.to_owned() }
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((name, value.into()));
        }
        self
    }
}

pub(crate) struct Server {
    pub(crate) url: Url,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Server {
    /// Starts a service. `reply` gets the number of the request, from 0, and the request.
    pub(crate) fn start(reply: impl Fn(usize, &Received) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let received = Arc::<Mutex<Vec<Received>>>::default();
        let (reply, seen) = (Arc::new(reply), Arc::clone(&received));
        // Ends with the test program: nothing of it is elsewhere.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (reply, seen) = (Arc::clone(&reply), Arc::clone(&seen));
                thread::spawn(move || serve(stream, &*reply, &seen));
            }
        });
        Self { url, received }
    }

    /// Starts a service that gives these answers one after another, and the last one from then on.
    pub(crate) fn answering(replies: Vec<Reply>) -> Self {
        Self::start(move |number, _| replies[number.min(replies.len() - 1)].clone())
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

fn serve(
    stream: TcpStream,
    reply: &(dyn Fn(usize, &Received) -> Reply + Send + Sync),
    seen: &Mutex<Vec<Received>>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(request) = read(&mut reader) {
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        let written = match reply(number, &request) {
            Reply::Drop => return,
            Reply::Silence => {
                thread::sleep(Duration::from_secs(60));
                return;
            }
            Reply::HalfBody => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\"");
                return;
            }
            Reply::Answer { status, headers, body } => {
                let mut head = format!("HTTP/1.1 {status} X\r\n");
                for (name, value) in headers {
                    head += &format!("{name}: {value}\r\n");
                }
                let length = if status == 204 {
                    String::new()
                } else {
                    format!("content-length: {}\r\n", body.len())
                };
                stream.write_all(format!("{head}{length}\r\n{body}").as_bytes())
            }
            Reply::Chunks(chunks) => chunked(&mut stream, &chunks),
        };
        if written.is_err() {
            return;
        }
    }
}

fn chunked(stream: &mut TcpStream, chunks: &[(Duration, &str)]) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
    for (pause, chunk) in chunks {
        thread::sleep(*pause);
        stream.write_all(format!("{:x}\r\n{chunk}\r\n", chunk.len()).as_bytes())?;
    }
    stream.write_all(b"0\r\n\r\n")
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let mut words = line.split_whitespace();
    let mut request = Received {
        method: words.next()?.to_owned(),
        path: words.next()?.to_owned(),
        ..Received::default()
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        request.headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    if let Some(length) = request.header("content-length").and_then(|text| text.parse().ok()) {
        request.body = vec![0; length];
        reader.read_exact(&mut request.body).ok()?;
    } else if request.header("transfer-encoding").is_some() {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            if size == 0 {
                break;
            }
            request.body.extend_from_slice(&chunk[..size]);
        }
    }
    Some(request)
}
