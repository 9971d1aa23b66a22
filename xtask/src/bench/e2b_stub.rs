//! A server that answers the official SDK of E2B at once: what its client costs by itself. It does what no server can leave
//! out: a file is kept in memory, and a command is a bare `bash`.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::sample::{Measured, text};

/// Bytes of the file that is downloaded.
pub(crate) const LARGE: usize = 100 << 20;

/// Most bytes of the head of a request.
const MAX_HEAD: usize = 64 << 10;

/// Bytes that are read or written at once.
const PIECE: usize = 256 << 10;

/// What ends a body of unknown length.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Starts the server on a thread of its own, which lives as long as this process.
pub(crate) fn start() -> Measured<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(text)?;
    listener.set_nonblocking(true).map_err(text)?;
    let address = listener.local_addr().map_err(text)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().map_err(text)?;
    std::thread::spawn(move || runtime.block_on(serve(listener)));
    Ok(address)
}

async fn serve(listener: std::net::TcpListener) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    while let Ok((stream, _)) = listener.accept().await {
        // A client that goes away has what it wants.
        tokio::spawn(async move { drop(answer_all(stream).await) });
    }
}

async fn answer_all(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(PIECE);
    // Without a name, so that nothing is left of it.
    let mut file = tempfile::tempfile_in("/dev/shm")?;
    while let Some(head) = read_head(&mut stream, &mut buffer).await? {
        read_body(&mut stream, &mut buffer, &head, &mut file).await?;
        answer(&mut stream, &head, &mut file).await?;
    }
    Ok(())
}

/// Reads a head in small letters, and leaves what follows it in the buffer. `None`: the client has closed the connection.
async fn read_head(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> std::io::Result<Option<String>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
            buffer.drain(..end + 4);
            return Ok(Some(head));
        }
        if buffer.len() > MAX_HEAD || stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

async fn read_body(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    head: &str,
    file: &mut File,
) -> std::io::Result<()> {
    let field = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim)
    };
    if let Some(length) = field("content-length").and_then(|length| length.parse::<usize>().ok()) {
        let mut left = length.saturating_sub(buffer.len());
        buffer.drain(..length.min(buffer.len()));
        let is_file = head.starts_with("post /files");
        if is_file {
            file.set_len(0)?;
            file.rewind()?;
        }
        let mut piece = vec![0; PIECE];
        while left > 0 {
            let most = left.min(PIECE);
            let count = stream.read(&mut piece[..most]).await?;
            if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if is_file {
                file.write_all(&piece[..count])?;
            }
            left -= count;
        }
        return Ok(());
    }
    if field("transfer-encoding") == Some("chunked") {
        // Clients of a table send one request after the other, and no content that looks like an end.
        while !buffer.ends_with(LAST_CHUNK) {
            let kept = buffer.len().saturating_sub(LAST_CHUNK.len());
            buffer.drain(..kept);
            if stream.read_buf(buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        buffer.clear();
    }
    Ok(())
}

async fn answer(stream: &mut TcpStream, head: &str, file: &mut File) -> std::io::Result<()> {
    let request = head.lines().next().unwrap_or_default();
    if request.starts_with("get /files") {
        return download(stream, file).await;
    }
    let (status, kind, body) = match request.split(' ').take(2).collect::<Vec<_>>()[..] {
        ["post", path] if path.ends_with("/sandboxes") => (
            "201 Created",
            "application/json",
            concat!(
                r#"{"templateID":"base","sandboxID":"stub","clientID":"x","envdVersion":"0.6.13","#,
                r#""envdAccessToken":"t","trafficAccessToken":null,"domain":null}"#
            )
            .as_bytes()
            .to_vec(),
        ),
        ["delete", _] => ("204 No Content", "", Vec::new()),
        ["post", "/execute"] => ("200 OK", "application/x-ndjson", run()),
        ["post", path] if path.starts_with("/files") => {
            let written = br#"[{"name":"large","path":"/home/user/large","type":"file"}]"#;
            ("200 OK", "text/plain; charset=utf-8", written.to_vec())
        }
        ["post", "/process.process/start"] => {
            let mut bash = Command::new("/bin/bash");
            bash.args(["-c", "true"]).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
            ("200 OK", "application/connect+json", process())
        }
        _ => {
            ("404 Not Found", "application/json", br#"{"code":404,"message":"no route"}"#.to_vec())
        }
    };
    let head = match kind {
        "" => format!("HTTP/1.1 {status}\r\n\r\n"),
        kind => format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        ),
    };
    stream.write_all(&[head.as_bytes(), &body].concat()).await
}

/// The lines of `1+1`.
fn run() -> Vec<u8> {
    let lines = concat!(
        "{\"type\":\"result\",\"text\":\"2\",\"is_main_result\":true}\n",
        "{\"type\":\"number_of_executions\",\"execution_count\":1}\n",
        "{\"type\":\"end_of_execution\"}\n",
    );
    lines.as_bytes().to_vec()
}

/// The messages of a process that does nothing.
fn process() -> Vec<u8> {
    let messages = [
        (0, r#"{"event":{"start":{"pid":7}}}"#),
        (0, r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#),
        (2, "{}"),
    ];
    let mut framed = Vec::new();
    for (flags, message) in messages {
        framed.extend([flags, 0, 0, 0, u8::try_from(message.len()).unwrap_or(u8::MAX)]);
        framed.extend_from_slice(message.as_bytes());
    }
    framed
}

async fn download(stream: &mut TcpStream, file: &mut File) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {LARGE}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut piece = vec![0; PIECE];
    file.set_len(LARGE as u64)?;
    file.rewind()?;
    for _ in 0..LARGE / PIECE {
        file.read_exact(&mut piece)?;
        stream.write_all(&piece).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_one_request_after_the_other() {
        let mut stream = std::net::TcpStream::connect(start().unwrap()).unwrap();
        let mut ask = |request: &str, end: &str| {
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(end.as_bytes()) {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
            String::from_utf8(answer).unwrap()
        };
        let long = "POST /v2/sandboxes HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}";
        assert!(ask(long, "}").starts_with("HTTP/1.1 201"));
        let chunked =
            "POST /execute HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        assert!(ask(chunked, "end_of_execution\"}\n").contains("\"text\":\"2\""));
        assert!(ask("DELETE /sandboxes/stub HTTP/1.1\r\n\r\n", "\r\n\r\n").contains("204"));
        assert!(ask("GET /other HTTP/1.1\r\n\r\n", "}").starts_with("HTTP/1.1 404"));
    }
}
