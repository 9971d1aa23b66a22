//! Reads the host of every HTTP request on a connection, before the request is forwarded.
//!
//! Requests that two parsers could read in two ways are refused: only then does the server read the same host as the
//! gate.

use crate::authority;

/// Maximum size of a request head, with all its fields.
pub(crate) const MAX_HEAD_SIZE: usize = 64 * 1024;
pub(crate) const MAX_FIELDS: usize = 128;
/// Maximum length of a chunk size line or a trailer line.
const MAX_LINE_LENGTH: usize = 8 * 1024;

/// Reason why a request is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// The bytes are not HTTP, or ambiguous.
    Protocol,
    /// The request names no host.
    NoHost,
    /// The request names a host that is not allowed.
    Host(String),
}

/// Parser of the requests of one connection.
#[derive(Debug)]
pub(crate) struct Requests {
    port: u16,
    /// The host of the first request, which every later one must name too.
    host: Option<String>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The received part of a head.
    Head(Vec<u8>),
    /// The number of body bytes still to come.
    Body(u64),
    /// The received part of a line with the size of the next chunk.
    ChunkSize(Vec<u8>),
    /// The number of chunk bytes still to come.
    Chunk(u64),
    /// The received part of the line end after a chunk.
    ChunkEnd(Vec<u8>),
    /// The received part of a line after the last chunk.
    Trailer(Vec<u8>),
}

/// Framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
}

impl Requests {
    pub(crate) fn new(port: u16) -> Self {
        Self { port, host: None, state: State::Head(Vec::new()) }
    }

    /// Returns true once a complete head has been read.
    pub(crate) fn has_started(&self) -> bool {
        self.host.is_some()
    }

    /// Parses received bytes, and appends the bytes to forward to `out`. `allowed` decides about each host.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        out: &mut Vec<u8>,
        allowed: &dyn Fn(&str) -> bool,
    ) -> Result<(), RequestError> {
        while !bytes.is_empty() {
            let taken = match &mut self.state {
                State::Head(_) => self.head(bytes, out, allowed)?,
                State::Body(left) => {
                    let taken = take_body(bytes, left, out);
                    if *left == 0 {
                        self.state = State::Head(Vec::new());
                    }
                    taken
                }
                State::Chunk(left) => {
                    let taken = take_body(bytes, left, out);
                    if *left == 0 {
                        self.state = State::ChunkEnd(Vec::new());
                    }
                    taken
                }
                State::ChunkEnd(line) => {
                    let (taken, whole) = line_end(line, bytes)?;
                    if whole && line.as_slice() != b"\r\n" {
                        return Err(RequestError::Protocol);
                    }
                    if whole {
                        out.append(line);
                        self.state = State::ChunkSize(Vec::new());
                    }
                    taken
                }
                State::ChunkSize(line) => {
                    let (taken, whole) = line_end(line, bytes)?;
                    if whole {
                        let size = parse_chunk_size(line)?;
                        out.append(line);
                        self.state = match size {
                            0 => State::Trailer(Vec::new()),
                            size => State::Chunk(size),
                        };
                    }
                    taken
                }
                State::Trailer(line) => {
                    let (taken, whole) = line_end(line, bytes)?;
                    if whole {
                        let last = line.as_slice() == b"\r\n";
                        out.append(line);
                        self.state =
                            if last { State::Head(Vec::new()) } else { State::Trailer(Vec::new()) };
                    }
                    taken
                }
            };
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn head(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        allowed: &dyn Fn(&str) -> bool,
    ) -> Result<usize, RequestError> {
        const END: &[u8] = b"\r\n\r\n";
        let State::Head(head) = &mut self.state else { return Err(RequestError::Protocol) };
        let had = head.len();
        head.extend_from_slice(
            &bytes[..bytes.len().min(MAX_HEAD_SIZE + 1 - had.min(MAX_HEAD_SIZE))],
        );
        let from = had.saturating_sub(END.len() - 1);
        let end = head[from..].windows(END.len()).position(|window| window == END);
        let Some(end) = end.map(|at| from + at + END.len()) else {
            let ok = head.len() <= MAX_HEAD_SIZE && may_be_a_head(head);
            return if ok { Ok(bytes.len()) } else { Err(RequestError::Protocol) };
        };
        head.truncate(end);
        let (host, framing) = read_head(head, self.port)?;
        if self.host.as_ref().is_some_and(|first| *first != host) || !allowed(&host) {
            return Err(RequestError::Host(host));
        }
        out.append(head);
        self.host = Some(host);
        self.state = match framing {
            Framing::Length(0) => State::Head(Vec::new()),
            Framing::Length(length) => State::Body(length),
            Framing::Chunked => State::ChunkSize(Vec::new()),
        };
        Ok(end - had)
    }
}

fn take_body(bytes: &[u8], left: &mut u64, out: &mut Vec<u8>) -> usize {
    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    out.extend(&bytes[..count]);
    *left -= count as u64;
    count
}

/// Extends a line up to its end; returns how many bytes were taken, and whether the line is complete.
fn line_end(line: &mut Vec<u8>, bytes: &[u8]) -> Result<(usize, bool), RequestError> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let taken = end.map_or(bytes.len(), |at| at + 1);
    line.extend(&bytes[..taken]);
    if line.len() > MAX_LINE_LENGTH || (end.is_some() && !line.ends_with(b"\r\n")) {
        return Err(RequestError::Protocol);
    }
    Ok((taken, end.is_some()))
}

/// Parses a chunk size. Chunk extensions are refused: their only real use is to confuse parsers.
fn parse_chunk_size(line: &[u8]) -> Result<u64, RequestError> {
    let text = line.strip_suffix(b"\r\n").and_then(|text| std::str::from_utf8(text).ok());
    let text = text.filter(|text| (1..=16).contains(&text.len()));
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    text.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or(RequestError::Protocol)
}

/// Refuses bytes that cannot be a request before they reach the size limit of a head.
pub(crate) fn may_be_a_head(bytes: &[u8]) -> bool {
    const MAX_METHOD_LENGTH: usize = 24;
    let method = bytes.split(|byte| *byte == b' ').next().unwrap_or_default();
    method.len() <= MAX_METHOD_LENGTH
        && method.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'-')
}

/// Returns false when a line ends with only a line feed or only a carriage return: parsers differ about such ends.
pub(crate) fn has_plain_lines(head: &[u8]) -> bool {
    head.iter().enumerate().all(|(at, byte)| match byte {
        b'\n' => at > 0 && head[at - 1] == b'\r',
        b'\r' => head.get(at + 1) == Some(&b'\n'),
        0 => false,
        _ => true,
    })
}

/// Returns the host of a request and the framing of its body.
fn read_head(head: &[u8], port: u16) -> Result<(String, Framing), RequestError> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let whole =
        request.parse(head).is_ok_and(|status| status == httparse::Status::Complete(head.len()));
    let (Some(method), Some(target), Some(version)) =
        (request.method, request.path, request.version)
    else {
        return Err(RequestError::Protocol);
    };
    if !whole || !has_plain_lines(head) || !may_be_a_head(head) || method == "CONNECT" {
        return Err(RequestError::Protocol);
    }
    let values = |name: &str| -> Vec<&[u8]> {
        let own = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        own.map(|field| field.value).collect()
    };
    if !values("upgrade").is_empty() {
        return Err(RequestError::Protocol);
    }
    let framing = framing(version, &values("transfer-encoding"), &values("content-length"))?;
    let host = match values("host")[..] {
        [host] => parse_host(host, port)?,
        [] => return Err(RequestError::NoHost),
        _ => return Err(RequestError::Protocol),
    };
    if let Some(other) = target_host(target, method, port)?
        && other != host
    {
        return Err(RequestError::Host(other));
    }
    Ok((host, framing))
}

fn framing(version: u8, encodings: &[&[u8]], lengths: &[&[u8]]) -> Result<Framing, RequestError> {
    match (encodings, lengths) {
        ([], []) => Ok(Framing::Length(0)),
        ([encoding], []) if version == 1 && encoding.eq_ignore_ascii_case(b"chunked") => {
            Ok(Framing::Chunked)
        }
        ([], [length]) => {
            let digits = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(length).ok().filter(|_| digits);
            let length = text.and_then(|text| text.parse().ok());
            length.map(Framing::Length).ok_or(RequestError::Protocol)
        }
        _ => Err(RequestError::Protocol),
    }
}

/// Returns the host in the request target, which takes precedence over the `Host` field.
fn target_host(target: &str, method: &str, port: u16) -> Result<Option<String>, RequestError> {
    if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        return Ok(None);
    }
    let scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let rest = scheme.and_then(|_| target.get(7..)).ok_or(RequestError::Protocol)?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    parse_host(&rest.as_bytes()[..end], port).map(Some)
}

/// Parses the host of `host` or `host:port`; the port must be that of the connection.
fn parse_host(text: &[u8], port: u16) -> Result<String, RequestError> {
    let text = std::str::from_utf8(text).map_err(|_| RequestError::Protocol)?;
    let (host, own_port) = authority::split(text).ok_or(RequestError::NoHost)?;
    if !text.starts_with('[') && !authority::is_plain(host) {
        return Err(RequestError::NoHost);
    }
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    match own_port {
        Some(own) if own != port => Err(RequestError::Host(format!("{host}:{own}"))),
        _ => Ok(host),
    }
}

#[cfg(test)]
mod tests;
