//! Interrupted commands leave nothing behind, on this host and in the supervisor.

use std::fs;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::detached::{World, eventually};
use crate::support::{finish, run};

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
}

#[test]
fn a_create_that_is_interrupted_leaves_no_sandbox() {
    let world = World::new();
    let begun = Instant::now();
    let kept = world.create(&[]);
    let usual = begun.elapsed().min(Duration::from_millis(500));
    for nth in 0..10 {
        let child = world.call(&["create"]).spawn();
        thread::sleep(usual * nth / 10);
        send(&child, if nth % 2 == 0 { Signal::INT } else { Signal::TERM });
        let outcome = finish(child);
        if outcome.status == 0 {
            // The sandbox existed before.
            world.ok(&["rm", outcome.text().trim()]);
        }
        assert_eq!(world.ids(), [kept.as_str()], "{nth}: {outcome:?}");
    }
}

#[test]
fn a_copy_that_is_interrupted_leaves_no_file() {
    let world = World::new();
    let sandbox = world.create(&[]);
    world.ok(&["exec", &sandbox, "head -c 400M /dev/zero >large"]);
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("large");
    let names = || fs::read_dir(directory.path()).unwrap().count();
    for signal in [Signal::INT, Signal::TERM] {
        let from = format!("{sandbox}:large");
        let child = world.call(&["cp", &from, target.to_str().unwrap()]).spawn();
        eventually("the copy begins", || names() > 0);
        send(&child, signal);
        let outcome = finish(child);
        assert!(outcome.status != 0 || target.exists(), "{outcome:?}");
        let _ = fs::remove_file(&target);
        assert_eq!(names(), 0, "{outcome:?}");
    }
}

#[test]
fn a_program_that_never_arrives_does_not_delay_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let way = directory.path().join("program.py");
    assert!(Command::new("mkfifo").arg(&way).status().unwrap().success());
    let calls =
        [run(["--file", way.to_str().unwrap()]), run(["--lang", "python", "-"]).stdin(Vec::new())];
    for call in calls {
        let mut child = call.spawn();
        // The pipe is held open until the end.
        let _stdin = child.stdin.take();
        thread::sleep(Duration::from_millis(500));
        send(&child, Signal::TERM);
        assert_eq!(finish(child).status, 128 + 15);
    }
}

#[test]
fn a_name_is_given_once_however_many_ask_for_it_at_once() {
    let world = World::new();
    let calls: Vec<_> = (0..4).map(|_| world.call(&["create", "--name", "race"]).spawn()).collect();
    let outcomes: Vec<_> = calls.into_iter().map(finish).collect();
    let made = outcomes.iter().filter(|outcome| outcome.status == 0).count();
    assert_eq!((made, world.ids().len()), (1, 1), "{outcomes:?}");
    for refused in outcomes.iter().filter(|outcome| outcome.status != 0) {
        assert!(refused.stderr.contains("the name \"race\" belongs to"), "{refused:?}");
    }
    // The name is free again after the end of its sandbox.
    world.ok(&["rm", "race"]);
    world.create(&["--name", "race"]);
}

#[test]
fn one_can_be_made_in_the_moment_in_which_the_supervisor_ends() {
    let world = World::with_idle("0.3");
    for nth in 0..8 {
        let id = world.create(&[]);
        world.ok(&["rm", &id]);
        // The supervisor checks every half second.
        thread::sleep(Duration::from_millis(350 + 40 * nth));
    }
}
