//! What a killed process leaves in a cloud is found and ended by a later one, on a server for each cloud.

#[path = "../../../backend-modal/tests/support/mod.rs"]
#[expect(dead_code, reason = "tests of the backend ask more of the service")]
mod modal;

use std::io::Read as _;

use sandbox_test_server::daytona::{DaytonaServer, KEY, Options};
use serde_json::json;

use crate::e2b_server::Server;
use crate::support::{Call, Outcome, sandboxes};

/// A cloud as a process sees it: the variables that lead to its server, and a home for records.
struct Cloud {
    variant: &'static str,
    variables: Vec<(&'static str, String)>,
    home: tempfile::TempDir,
}

impl Cloud {
    fn new(variant: &'static str, variables: Vec<(&'static str, String)>) -> Self {
        Self { variant, variables, home: tempfile::tempdir().unwrap() }
    }

    fn call(&self, arguments: &[&str]) -> Call {
        let call = sandboxes(arguments).env("XDG_STATE_HOME", self.home.path());
        let call = call.env("HOME", self.home.path());
        self.variables.iter().fold(call, |call, (name, value)| call.env(name, value))
    }

    fn on(&self, arguments: &[&str]) -> Outcome {
        self.call(&[arguments, &["-p", self.variant]].concat()).output()
    }

    fn alive(&self) -> usize {
        self.on(&["ls", "--json"]).json().as_array().map_or(0, Vec::len)
    }

    /// Kills a process in the middle of its run, and looks what a later one finds.
    fn reaps_what_a_killed_process_leaves(&self) {
        let stays = self.on(&["create", "--lifetime", "600"]);
        assert_eq!(stays.status, 0, "{}", stays.transcript());
        let code = "print('begun', flush=True); import time; time.sleep(100)";
        let mut owner = self.call(&["run", "-p", self.variant, "--lang", "python", code]).spawn();
        let mut begun = [0; 5];
        owner.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
        assert_eq!(self.alive(), 2);
        let early = self.on(&["reap", "--json"]).json();
        assert_eq!(early["sandboxes"], json!([]), "its owner lives: {early}");

        // SIGKILL: nothing of the owner can run any more.
        owner.kill().unwrap();
        owner.wait().unwrap();
        assert_eq!(self.alive(), 2, "the provider does not notice");
        let dry = self.on(&["reap", "--dry-run", "--json"]).json();
        assert_eq!(dry["sandboxes"].as_array().unwrap().len(), 1, "{dry}");
        assert_eq!(self.alive(), 2, "nothing was ended");
        let reaped = self.on(&["reap"]);
        assert_eq!(reaped.status, 0, "{}", reaped.transcript());
        assert!(reaped.text().contains("its process is gone"), "{}", reaped.text());
        assert_eq!(self.alive(), 1, "the one that was created to stay stays");
        assert!(self.on(&["reap"]).stderr.contains("no sandbox is without an owner"));
        assert_eq!(self.on(&["rm", stays.text().trim()]).status, 0);
        assert_eq!(self.alive(), 0);
    }
}

#[test]
fn what_a_killed_process_leaves_in_daytona_is_reaped() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(DaytonaServer::start(Options::default())).unwrap();
    let variables =
        vec![("DAYTONA_API_KEY", KEY.to_owned()), ("DAYTONA_API_URL", server.api_url())];
    Cloud::new("daytona", variables).reaps_what_a_killed_process_leaves();
    assert_eq!(server.alive(), Vec::<String>::new());
}

#[test]
fn what_a_killed_process_leaves_in_modal_is_reaped() {
    let service = modal::Service::start();
    let variables = vec![
        ("MODAL_TOKEN_ID", modal::TOKEN_ID.to_owned()),
        ("MODAL_TOKEN_SECRET", modal::TOKEN_SECRET.to_owned()),
        ("MODAL_SERVER_URL", service.url.clone()),
    ];
    Cloud::new("modal", variables).reaps_what_a_killed_process_leaves();
    assert!(service.running().is_empty());
}

#[test]
fn what_a_killed_process_leaves_in_e2b_is_reaped() {
    let server = Server::start(&[]);
    let url = format!("http://127.0.0.1:{}", server.port);
    let variables = vec![
        ("E2B_API_KEY", server.key.clone()),
        ("E2B_API_URL", url.clone()),
        ("E2B_SANDBOX_URL", url),
    ];
    Cloud::new("e2b", variables).reaps_what_a_killed_process_leaves();
    assert_eq!(server.end(), 0);
}
