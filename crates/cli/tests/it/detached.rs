//! Detached sandboxes: created by one process, used by others, ended by any of them or by a time limit.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Call, Outcome, finish, sandboxes};

/// A directory for a supervisor of its own, which is started on demand.
pub(crate) struct World {
    directory: TempDir,
    idle: &'static str,
}

impl World {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        Self { directory, idle: "60" }
    }

    /// Creates a world whose supervisor ends after that many idle seconds.
    pub(crate) fn with_idle(idle: &'static str) -> Self {
        let mut world = Self::new();
        world.idle = idle;
        world
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn call(&self, arguments: &[&str]) -> Call {
        sandboxes(arguments)
            .env("CODE_SANDBOXES_RUNTIME_DIR", self.path().to_str().unwrap())
            .env("CODE_SANDBOXES_STATE_DIR", self.path().to_str().unwrap())
            .env("CODE_SANDBOXES_SUPERVISOR_IDLE", self.idle)
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        self.call(arguments).output()
    }

    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.status, 0, "{arguments:?}: {}", outcome.transcript());
        outcome.text().to_owned()
    }

    #[track_caller]
    pub(crate) fn create(&self, arguments: &[&str]) -> String {
        self.ok(&[&["create"], arguments].concat()).trim().to_owned()
    }

    #[track_caller]
    pub(crate) fn ids(&self) -> Vec<String> {
        let listed: Vec<Value> = serde_json::from_str(&self.ok(&["ls", "--json"])).unwrap();
        listed.iter().map(|info| info["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Finds the supervisors whose environment names this directory.
    pub(crate) fn supervisors(&self) -> Vec<i32> {
        let mark = format!("CODE_SANDBOXES_RUNTIME_DIR={}", self.path().display());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let has_mark = environment.split(|byte| *byte == 0).any(|item| item == mark.as_bytes());
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if has_mark && line.starts_with(b"sandboxes\0supervisor") {
                found.push(pid);
            }
        }
        found
    }

    #[track_caller]
    pub(crate) fn supervisor(&self) -> i32 {
        let found = self.supervisors();
        assert_eq!(found.len(), 1, "supervisors: {found:?}");
        found[0]
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for pid in self.supervisors() {
            kill(pid, "KILL");
        }
    }
}

pub(crate) fn kill(pid: i32, signal: &str) {
    let killed = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
    assert!(killed.unwrap().success() || !Path::new(&format!("/proc/{pid}")).exists());
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20), "never: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn running_with(text: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let own = entry.file_name().to_string_lossy() == std::process::id().to_string();
        !own && String::from_utf8_lossy(&line).contains(text)
    })
}

#[test]
fn the_next_user_of_a_dead_interpreter_gets_an_error() {
    let world = World::new();
    let id = world.create(&[]);
    let python = |code: &str| world.run(&["exec", &id, "--lang", "python", code]);
    assert_eq!(python("import os; os._exit(3)").status, 3);
    let next = python("'os' in globals()");
    next.assert(0, "False\n");
    assert!(next.stderr.contains("its variables are lost"), "{next:?}");
    assert_eq!(python("1").stderr, "");
}

#[test]
fn state_stays_from_process_to_process() {
    let world = World::new();
    let id = world.create(&["-l", "project=a", "--name", "first"]);
    assert!(id.starts_with("local-eval/"), "{id}");
    let local = id.strip_prefix("local-eval/").unwrap();
    world.run(&["exec", &id, "--lang", "python", "x = 41"]).assert(0, "");
    world.run(&["exec", local, "--lang", "python", "x + 1"]).assert(0, "42\n");
    world.run(&["exec", &local[..8], "--lang", "python", "x + 2"]).assert(0, "43\n");
    world
        .run(&["exec", "first", "--lang", "python", "--context", "b", "'x' in globals()"])
        .assert(0, "False\n");
    world
        .run(&["exec", local, "-p", "eval", "echo $A; echo e >&2; exit 3", "-e", "A=1"])
        .assert(3, "1\n");
    world.run(&["exec", &id, "-w", "/tmp", "--", "pwd"]).assert(0, "/tmp\n");
    let busy = world.run(&["exec", &id, "--cpu-time", "0.5", "while :; do :; done"]);
    busy.assert(124, "");
    assert!(busy.stderr.contains("CPU time of 0.5 seconds"), "{busy:?}");
    world.call(&["exec", &id, "tr", "a-z", "A-Z"]).stdin("piped").output().assert(0, "PIPED");
    let result = world.run(&["exec", &id, "--json", "--lang", "python", "1/0"]);
    assert_eq!(result.status, 1);
    assert_eq!(result.json()["code_error"]["name"], "ZeroDivisionError");
    assert_eq!(result.json()["sandbox_id"], id.as_str());
    let program = world.path().join("p.py");
    fs::write(&program, "import sys; print(sys.argv[1:])").unwrap();
    world.run(&["exec", &id, "--file", program.to_str().unwrap(), "a"]).assert(0, "['a']\n");
}

#[test]
fn a_command_of_root_is_refused_where_there_is_none() {
    let world = World::new();
    world.ok(&["create", "--name", "box"]);
    let refused = world.run(&["exec", "--user", "root", "box", "touch made"]);
    assert_eq!((refused.status, refused.text()), (125, ""), "{}", refused.transcript());
    assert!(refused.stderr.contains("hint: local-docker has them"), "{}", refused.stderr);
    let none = world.run(&["exec", "box", "test -e made"]);
    assert_eq!(none.status, 1, "nothing ran as another user: {}", none.transcript());
    for wrong in [
        &["exec", "--user", "root", "box", "--lang", "python", "1"][..],
        &["exec", "--user", "ada", "box", "id"],
    ] {
        let outcome = world.run(wrong);
        assert_eq!(outcome.status, 2, "{wrong:?}: {}", outcome.transcript());
        assert!(outcome.stderr.contains("--user"), "{wrong:?}: {}", outcome.stderr);
    }
    world.ok(&["rm", "box"]);
}

#[test]
fn listings_show_what_runs() {
    let world = World::new();
    assert_eq!(world.ids(), Vec::<String>::new());
    assert!(world.supervisors().is_empty(), "a listing needs no supervisor");
    let a = world.create(&["-l", "env=prod", "-l", "n=1"]);
    let b = world.create(&["-l", "env=test"]);
    assert_eq!(world.ids(), [a.clone(), b.clone()]);
    let prod = world.ok(&["list", "-l", "env=prod"]);
    assert!(prod.contains(&a) && !prod.contains(&b), "{prod}");
    let info: Value = serde_json::from_str(&world.ok(&["ls", "-p", "eval", "--json"])).unwrap();
    assert_eq!(info[0]["labels"], json!({"env": "prod", "n": "1"}));
    assert_eq!(info[0]["provider"], "local-eval");
    assert_eq!(info[0]["state"], "running");
    assert!(info[0]["end_at"].as_f64().unwrap() > info[0]["created_at"].as_f64().unwrap());
    world.run(&["destroy", &a]).assert(0, "");
    assert_eq!(world.ids(), [b]);
    world.run(&["rm", "--all"]).assert(0, "");
    assert_eq!(world.ids(), Vec::<String>::new());
    world.run(&["rm", &a]);
    assert_eq!(world.run(&["rm", &a]).status, 125, "it is gone");
}

#[test]
fn one_run_can_leave_its_sandbox() {
    let world = World::new();
    let outcome = world.run(&["run", "--keep", "--json", "echo 1 > f; cat f"]);
    assert_eq!(outcome.json()["stdout"], "1", "{}", outcome.transcript());
    let id = outcome.json()["sandbox_id"].as_str().unwrap().to_owned();
    world.run(&["exec", &id, "cat f"]).assert(0, "1\n");
    let reported = world.run(&["run", "--keep", "true"]);
    assert_eq!(reported.text(), "");
    assert!(reported.stderr.contains("the sandbox stays: local-eval/"), "{}", reported.stderr);
    world.run(&["run", "true"]).assert(0, "");
    assert_eq!(world.ids().len(), 2);
}

#[test]
fn labels_find_a_sandbox_again() {
    let world = World::new();
    let run = |code: &str| {
        let arguments = ["run", "-l", "p=x", "--reuse", "--json", "--lang", "python", code];
        world.run(&arguments).json()
    };
    let first = run("n = 1");
    let second = run("n + 1");
    assert_eq!(second["text"], "2", "{second}");
    assert_eq!(first["sandbox_id"], second["sandbox_id"]);
    let with_env = ["run", "-l", "p=x", "--reuse", "-e", "NEW=yes", "echo $NEW"];
    world.run(&with_env).assert(0, "yes\n");
    let other = world.run(&["run", "-l", "p=y", "--reuse", "--json", "true"]).json();
    assert_ne!(other["sandbox_id"], first["sandbox_id"]);
    assert_eq!(world.run(&["run", "--reuse", "true"]).status, 2, "without labels");
}

#[test]
fn many_processes_make_one_sandbox_and_one_supervisor() {
    let world = World::new();
    let calls: Vec<_> =
        (0..8).map(|_| world.call(&["create", "--reuse", "-l", "only=one"]).spawn()).collect();
    let mut ids: Vec<_> = calls
        .into_iter()
        .map(|child| {
            let outcome = finish(child);
            assert_eq!(outcome.status, 0, "{}", outcome.transcript());
            outcome.text().to_owned()
        })
        .collect();
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(world.ids().len(), 1);
    world.supervisor();
}

#[test]
fn a_port_is_exposed_until_its_sandbox_ends() {
    let world = World::new();
    let id = world.create(&[]);
    assert_eq!(world.run(&["expose", &id, "0"]).status, 2);
    let server = "echo hello > x; nohup python3 -m http.server --bind 127.0.0.1 8000 >log 2>&1 &";
    world.run(&["exec", &id, server]).assert(0, "");
    let exposed = world.run(&["expose", &id, "8000"]);
    let address = exposed.text().trim().strip_prefix("http://").map(str::to_owned);
    let address = address.unwrap_or_else(|| panic!("{}", exposed.text()));
    let get = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&address)?;
        stream.write_all(b"GET /x HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    eventually("an answer", || get().is_ok_and(|answer| answer.ends_with("\r\n\r\nhello\n")));
    world.run(&["rm", &id]).assert(0, "");
    eventually("the end of the port", || TcpStream::connect(&address).is_err());
}

#[test]
fn a_sandbox_is_paused_resumed_and_measured() {
    let world = World::new();
    let id = world.create(&[]);
    let python = |code: &str| world.run(&["exec", &id, "--lang", "python", code]);
    python("kept = b'x' * (64 << 20)").assert(0, "");
    let metrics = world.run(&["metrics", &id, "--json"]).json();
    let memory = metrics[0]["memory"].as_u64().unwrap();
    assert!((64 << 20..256 << 20).contains(&memory), "{metrics}");
    assert!(metrics[0]["cpu_time"].as_f64().is_some_and(|used| used > 0.0), "{metrics}");
    world.run(&["pause", &id]).assert(0, "");
    assert_eq!(world.run(&["ls", "--json"]).json()[0]["state"], "paused");
    let refused = python("1");
    assert_eq!(refused.status, 125, "{}", refused.transcript());
    assert!(refused.transcript().contains("sandboxes resume"), "{}", refused.transcript());
    world.run(&["resume", &id]).assert(0, "");
    python("len(kept)").assert(0, "67108864\n");
}

#[test]
fn errors_about_wrong_names_list_similar_names() {
    let world = World::new();
    let absent = world.run(&["exec", "9f3a", "true"]);
    assert_eq!((absent.status, absent.text()), (125, ""));
    assert!(absent.stderr.contains("no sandbox 9f3a"), "{}", absent.stderr);
    let id = world.create(&["--name", "builder"]);
    let local = id.strip_prefix("local-eval/").unwrap();
    let typo = format!("{}{}", &local[..11], if local.ends_with('0') { '1' } else { '0' });
    let outcome = world.run(&["exec", &typo, "true"]);
    assert!(outcome.stderr.contains(&format!("similar: {local}")), "{}", outcome.stderr);
    let outcome = world.run(&["exec", "bulider", "true", "--json"]);
    assert!(outcome.stderr.contains("similar: builder"), "{}", outcome.stderr);
    let error = world.run(&["rm", "--json", "nope"]).json();
    assert_eq!(error["error"]["kind"], "not_found");
    let taken = world.run(&["create", "--name", "builder"]);
    assert_eq!(taken.status, 125);
    assert!(taken.stderr.contains("belongs to"), "{}", taken.stderr);
    for bad in ["", "a b", "../x", "nope/x", "local-eval/"] {
        let outcome = world.run(&["exec", bad, "true"]);
        assert!(matches!(outcome.status, 2 | 125), "{bad:?}: {}", outcome.transcript());
    }
    assert_eq!(world.run(&["rm"]).status, 2);
    assert_eq!(world.run(&["create", "--lifetime", "nan"]).status, 2);
}

#[test]
fn an_ambiguous_beginning_is_refused() {
    let world = World::new();
    // More sandboxes than first digits.
    let ids: Vec<_> = (0..17).map(|_| world.create(&[])).collect();
    let first = |id: &String| id.as_bytes()["local-eval/".len()] as char;
    let shared =
        ids.iter().map(first).find(|c| ids.iter().filter(|id| first(id) == *c).count() > 1);
    let shared = shared.unwrap().to_string();
    let outcome = world.run(&["exec", &shared, "true"]);
    assert_eq!(outcome.status, 2, "{}", outcome.transcript());
    assert!(outcome.stderr.contains("is ambiguous"), "{}", outcome.stderr);
    assert_eq!(world.ids().len(), 17, "none was touched");
}

#[test]
fn when_the_supervisor_dies_everything_dies_and_the_next_one_starts_clean() {
    let world = World::new();
    let token = format!("sleep 31{:05}", std::process::id() % 100_000);
    let id = world.create(&[]);
    let busy = world.call(&["exec", &id, &format!("{token} & wait")]).spawn();
    eventually("the command", || running_with(&token.replace(' ', "\0")));
    kill(world.supervisor(), "KILL");
    let cut = finish(busy);
    assert_eq!(cut.status, 125, "{}", cut.transcript());
    assert!(cut.stderr.contains("connection to the sandbox server broke"), "{}", cut.stderr);
    eventually("the end of the command", || !running_with(&token.replace(' ', "\0")));
    assert!(world.path().join("supervisor.sock").exists(), "no process could remove it");
    assert_eq!(world.ids(), Vec::<String>::new());
    assert_eq!(world.run(&["exec", &id, "true"]).status, 125);
    let next = world.create(&[]);
    assert_eq!(world.ids(), [next]);
}

#[test]
fn the_status_of_the_supervisor_has_a_circuit_breaker_for_each_variant() {
    let world = World::new();
    let none = world.run(&["supervisor", "--status"]);
    assert!(none.status == 0 && none.stderr.contains("no supervisor is running"), "{none:?}");
    assert!(world.supervisors().is_empty(), "looking starts none");
    let id = world.ok(&["create"]);
    let status = world.run(&["supervisor", "--status", "--json"]).json();
    assert_eq!((&status["running"], &status["sandboxes"]), (&json!(true), &json!(1)));
    assert_eq!(status["pid"], json!(world.supervisor()));
    let variants = status["variants"].as_array().unwrap();
    let cells = variants.iter().find(|one| one["variant"] == "local-eval").unwrap();
    assert_eq!((&cells["usable"], &cells["breaker"]), (&json!(true), &json!("closed")));
    let table = world.run(&["supervisor", "--status"]);
    assert!(table.text().contains("local-eval") && table.text().contains("closed"), "{table:?}");
    world.ok(&["rm", id.trim()]);
}

#[test]
fn a_lifetime_ends_without_clients_and_then_the_supervisor() {
    let mut world = World::new();
    world.idle = "1";
    let token = format!("sleep 32{:05}", std::process::id() % 100_000);
    let id = world.create(&["--lifetime", "1.5"]);
    let start = format!("import subprocess; p = subprocess.Popen('{token}'.split())");
    world.run(&["exec", &id, "--lang", "python", &start]).assert(0, "");
    assert!(running_with(&token.replace(' ', "\0")));
    let supervisor = world.supervisor();
    eventually("the end of the command", || !running_with(&token.replace(' ', "\0")));
    eventually("the end of the supervisor", || !world.supervisors().contains(&supervisor));
    assert!(!world.path().join("supervisor.sock").exists());
    world.create(&[]);
}

#[test]
fn the_end_of_a_supervisor_ends_its_sandboxes() {
    let world = World::new();
    let id = world.create(&[]);
    kill(world.supervisor(), "TERM");
    eventually("its end", || world.supervisors().is_empty());
    assert!(!world.path().join("supervisor.sock").exists());
    assert_eq!(world.run(&["exec", &id, "true"]).status, 125);
}

#[test]
fn logs_show_runs_and_follow_to_the_end() {
    let world = World::new();
    let id = world.create(&[]);
    let mut follower = world.call(&["logs", "-f", &id]).spawn();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    world.run(&["exec", &id, "--lang", "python", "print('out')\n5"]).assert(0, "out\n5\n");
    let next: Vec<_> = lines.by_ref().take(4).map(Result::unwrap).collect();
    let texts: Vec<_> = next.iter().map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(texts, ["1 code print('out')", "1 code 5", "1 stdout out", "1 result 5"]);
    world.run(&["exec", &id, "echo e >&2; exit 3"]);
    world.run(&["stop", &id]).assert(0, "");
    let rest: Vec<_> = lines.map(Result::unwrap).collect();
    assert!(rest.last().unwrap().ends_with("0 ended the sandbox has ended"), "{rest:?}");
    assert!(follower.wait().unwrap().success());
    assert_eq!(world.ids(), Vec::<String>::new());
    let kept = world.ok(&["logs", &id, "--json"]);
    let lines: Vec<Value> = kept.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["type"] == "stderr" && line["text"] == "e"), "{kept}");
    assert!(lines.iter().any(|line| line["type"] == "exit" && line["text"] == "3"), "{kept}");
    world.run(&["rm", &id]).assert(0, "");
    assert_eq!(world.run(&["logs", &id]).status, 125);
}

#[test]
fn a_directory_that_others_can_enter_is_refused() {
    let world = World::new();
    fs::set_permissions(world.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = world.run(&["create", "--json"]);
    assert_eq!(outcome.status, 125);
    assert_eq!(outcome.json()["error"]["kind"], "permission_denied");
    assert!(world.supervisors().is_empty());
}

/// Answers every client as a supervisor of another version, until it is asked to retire or has answered `most` times.
fn impostor(world: &World, hello: Value, most: usize) -> thread::JoinHandle<Vec<String>> {
    let socket = world.path().join("supervisor.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        let mut asked = Vec::new();
        while asked.len() < most {
            let (mut stream, _) = listener.accept().unwrap();
            let mut start = [0; 8];
            stream.read_exact(&mut start).unwrap();
            let length = u32::from_le_bytes(start[4..].try_into().unwrap());
            let mut words = vec![0; length as usize];
            stream.read_exact(&mut words).unwrap();
            let words: Value = serde_json::from_slice(&words).unwrap();
            let wants = words["wants"].as_str().unwrap().to_owned();
            let answer = serde_json::to_vec(&hello).unwrap();
            stream.write_all(b"CSBX").unwrap();
            stream.write_all(&(answer.len() as u32).to_le_bytes()).unwrap();
            stream.write_all(&answer).unwrap();
            let retired = wants == "retire";
            asked.push(wants);
            if retired {
                break;
            }
        }
        fs::remove_file(&socket).unwrap();
        asked
    })
}

fn older(sandboxes: u64) -> Value {
    json!({
        "protocol": 0, "version": "0.0.1", "variant": "local-eval", "capabilities": [],
        "about": {"sandboxes": sandboxes},
    })
}

#[test]
fn an_idle_older_supervisor_is_replaced() {
    let world = World::new();
    let impostor = impostor(&world, older(0), 10);
    let id = world.create(&[]);
    assert_eq!(impostor.join().unwrap().last().unwrap(), "retire");
    assert_eq!(world.ids(), [id]);
}

#[test]
fn a_busy_older_supervisor_is_an_error_with_a_hint() {
    let world = World::new();
    let impostor = impostor(&world, older(2), 1);
    let outcome = world.run(&["create", "--json"]);
    assert_eq!(outcome.status, 125);
    let error = &outcome.json()["error"];
    assert!(error["message"].as_str().unwrap().contains("version 0.0.1 and 2 sandboxes"));
    assert!(error["hint"].as_str().unwrap().contains("end its sandboxes"), "{error}");
    impostor.join().unwrap();
}

#[test]
fn a_second_supervisor_refuses_to_start() {
    let world = World::new();
    world.create(&[]);
    let outcome = world.run(&["supervisor"]);
    assert_eq!(outcome.status, 0);
    assert!(outcome.stderr.contains("another supervisor is running"), "{}", outcome.stderr);
    assert_eq!(world.ids().len(), 1);
}

#[test]
fn files_go_in_and_out() {
    let world = World::new();
    let id = world.create(&[]);
    let here = world.path().join("a file.bin");
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    fs::write(&here, &bytes).unwrap();
    let here = here.to_str().unwrap();
    world.run(&["cp", here, &format!("{id}:in.bin")]).assert(0, "");
    world.run(&["exec", &id, "wc -c < in.bin"]).assert(0, "300000\n");
    let back = world.path().join("back.bin");
    world.run(&["cp", &format!("{id}:in.bin"), back.to_str().unwrap()]).assert(0, "");
    assert_eq!(fs::read(&back).unwrap(), bytes);
    let missing = world.run(&["cp", &format!("{id}:missing"), back.to_str().unwrap()]);
    assert_eq!(missing.status, 125, "{}", missing.transcript());
    assert_eq!(world.run(&["cp", "a", "b"]).status, 2);
    world.run(&["exec", &id, "mkdir -p d/e; echo 1 > d/e/f"]).assert(0, "");
    let tree = world.path().join("tree");
    world.run(&["cp", &format!("{id}:d"), tree.to_str().unwrap()]).assert(0, "");
    assert_eq!(fs::read_to_string(tree.join("e/f")).unwrap(), "1\n");
}

#[test]
fn every_variant_is_tried_out() {
    let outcome = sandboxes(["test", "--json"]).output();
    assert_eq!(outcome.status, 0, "{}", outcome.transcript());
    let tested = outcome.json();
    assert_eq!(tested[0]["variant"], "local-eval");
    assert_eq!(tested[0]["works"], true);
    // Other variants may lack something on this host, and report it.
    for variant in tested.as_array().unwrap() {
        let (works, skipped) = (&variant["works"], &variant["skipped"]);
        assert!(*works == true || *skipped == true && variant["problem"].is_string(), "{variant}");
    }
    assert_eq!(sandboxes(["test", "-p", "nope"]).output().status, 2);
}
