//! A bare echo over a socket pair: what any exchange with an interpreter costs at least.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::sample::{Measured, since, text};

/// Bytes of a request to run `1+1`.
const PING: [u8; 64] = [b'x'; 64];

const PROGRAM: &str = "
import socket
stream = socket.socket(fileno=0)
while True:
    data = stream.recv(65536)
    if not data:
        break
    stream.send(data)
";

/// An interpreter that does nothing but send back what it gets.
#[derive(Debug)]
pub(crate) struct Echo {
    stream: UnixStream,
    child: Child,
}

impl Echo {
    pub(crate) fn start(python: &Path) -> Measured<Self> {
        let (stream, theirs) = UnixStream::pair().map_err(text)?;
        let mut command = Command::new(python);
        command.args(["-I", "-c", PROGRAM]).stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = command.spawn().map_err(text)?;
        Ok(Self { stream, child })
    }

    /// Milliseconds of one exchange, with calls that block.
    pub(crate) fn once(&mut self) -> Measured {
        let mut answer = [0; PING.len()];
        let began = Instant::now();
        let sent = self.stream.write_all(&PING);
        sent.and_then(|()| self.stream.read_exact(&mut answer)).map_err(text)?;
        Ok(since(began))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
