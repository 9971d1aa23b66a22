//! A running `sandboxes serve`.

use std::io::{BufRead as _, BufReader};
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Call, sandboxes, wait};

/// A server, with the variables that it has printed.
pub(crate) struct Server {
    child: Child,
    pub(crate) key: String,
    pub(crate) port: String,
}

impl Server {
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, &[])
    }

    pub(crate) fn start_with(flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let call = sandboxes(["serve", "--port", "0"]).args(flags.iter().copied());
        let call = variables.iter().fold(call, |call, (name, value)| call.env(name, value));
        Self::spawn(call)
    }

    pub(crate) fn spawn(call: Call) -> Self {
        let mut child = call.spawn();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(3);
        let lines: Vec<String> = lines.map(Result::unwrap).collect();
        let value = |at: usize, name: &str| {
            let line = lines[at].strip_prefix(&format!("export {name}="));
            line.unwrap_or_else(|| panic!("{lines:?}")).to_owned()
        };
        let (key, url) = (value(0, "E2B_API_KEY"), value(1, "E2B_API_URL"));
        assert_eq!(value(2, "E2B_SANDBOX_URL"), url);
        let port = url.strip_prefix("http://127.0.0.1:").unwrap().to_owned();
        Self { child, key, port }
    }

    /// Returns the variables by which the SDKs find it.
    pub(crate) fn environment(&self) -> [(&'static str, String); 3] {
        let url = format!("http://127.0.0.1:{}", self.port);
        [("E2B_API_KEY", self.key.clone()), ("E2B_API_URL", url.clone()), ("E2B_SANDBOX_URL", url)]
    }

    /// Interrupts it, and returns its exit status.
    pub(crate) fn end(mut self) -> i32 {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        wait(&mut self.child)
    }
}
