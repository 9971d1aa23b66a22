//! Tests of killing process trees.

use std::time::{Duration, Instant};

use sandbox_isolation::{CellSpec, ExitStatus, SpawnSpec};

use crate::support::{
    cell, eventually, output, processes_with, python, shell, start_until_line, strict_cell,
    unique_sleep,
};

/// Leaves a daemon behind: its parents are dead, its session is its own.
fn daemon(seconds: &str) -> String {
    format!("(setsid sh -c 'setsid sleep {seconds} </dev/null >/dev/null 2>&1 &' &) ; ")
}

/// A program that says `ready`, and whose death takes a while: freeing small pages is slow in the kernel.
fn slow_to_die(mebibytes: u32, mark: &str) -> SpawnSpec {
    python(&format!(
        "import mmap, os, time\n\
         memory = mmap.mmap(-1, {mebibytes} << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
         memory.madvise(mmap.MADV_NOHUGEPAGE)\n\
         for at in range(0, len(memory), 4096): memory[at] = 1\n\
         print('ready', flush=True); time.sleep(100)  # {mark}"
    ))
}

#[tokio::test]
async fn killing_a_tree_takes_its_daemons_and_nothing_else() {
    for spec in [CellSpec::strict(), CellSpec::off()] {
        let cell = cell(&spec).await;
        let (ours, other) = (unique_sleep(), unique_sleep());
        let script =
            |mark: &str| shell(&format!("{} sleep {mark} & echo ready; wait", daemon(mark)));
        let (victim, _) = start_until_line(&cell, script(&ours)).await;
        let (bystander, _) = start_until_line(&cell, script(&other)).await;
        eventually(Duration::from_secs(5), "both trees are complete", || {
            processes_with(&format!("sleep\0{ours}")).len() == 2
                && processes_with(&format!("sleep\0{other}")).len() == 2
        })
        .await;
        assert!(!victim.kill_tree().await.unwrap(), "{:?}", spec.isolation);
        assert_eq!(victim.wait().await.unwrap().status, ExitStatus::Signal(9));
        assert_eq!(processes_with(&ours), [] as [u32; 0]);
        assert_eq!(processes_with(&format!("sleep\0{other}")).len(), 2);
        bystander.kill_tree().await.unwrap();
        assert_eq!(processes_with(&other), [] as [u32; 0]);
        assert_eq!(output(&cell, shell("echo usable")).await, "usable\n");
    }
}

#[tokio::test]
async fn a_tree_that_has_ended_is_not_confused_with_a_later_one() {
    for spec in [CellSpec::strict(), CellSpec::off()] {
        let cell = cell(&spec).await;
        // The kernel gives the number of an ended namespace to the next one.
        let (ended, _) = start_until_line(&cell, shell("echo ready")).await;
        ended.wait().await.unwrap();
        let later = unique_sleep();
        let (bystander, _) =
            start_until_line(&cell, shell(&format!("sleep {later} & echo ready; wait"))).await;
        let sleeps = || processes_with(&format!("sleep\0{later}")).len() == 1;
        eventually(Duration::from_secs(5), "the later tree is complete", sleeps).await;
        // Nothing of it is alive, which for a signal is an error.
        ended.root().signal_tree(15).await.unwrap_err();
        assert!(!ended.kill_tree().await.unwrap(), "{:?}", spec.isolation);
        assert!(sleeps(), "{:?}", spec.isolation);
        bystander.kill_tree().await.unwrap();
    }
}

#[tokio::test]
async fn a_tree_that_dies_slowly_does_not_affect_the_others() {
    let cell = strict_cell().await;
    let (ours, other) = (unique_sleep(), unique_sleep());
    let (bystander, _) =
        start_until_line(&cell, shell(&format!("echo ready; exec sleep {other}"))).await;
    let (victim, _) = start_until_line(&cell, slow_to_die(800, &ours)).await;
    assert!(!victim.kill_tree().await.unwrap(), "nothing but the tree was killed");
    assert_eq!(processes_with(&ours), [] as [u32; 0]);
    assert_eq!(victim.wait().await.unwrap().status, ExitStatus::Signal(9));
    bystander.signal(0).await.unwrap();
    assert_eq!(processes_with(&other).len(), 1);
}

#[tokio::test]
async fn the_background_outlives_its_program_until_it_is_killed() {
    for spec in [CellSpec::strict(), CellSpec::off()] {
        let cell = cell(&spec).await;
        let (mark, other) = (unique_sleep(), unique_sleep());
        let sleep = format!("sleep\0{mark}");
        let (process, _) =
            start_until_line(&cell, shell(&format!("{} echo left", daemon(&mark)))).await;
        assert_eq!(process.wait().await.unwrap().status, ExitStatus::Code(0));
        eventually(Duration::from_secs(5), "the daemon runs", || processes_with(&sleep).len() == 1)
            .await;
        let (another, _) =
            start_until_line(&cell, shell(&format!("echo ready; exec sleep {other}"))).await;
        another.kill_tree().await.unwrap();
        assert_eq!(processes_with(&sleep).len(), 1, "{:?}", spec.isolation);
        process.kill_tree().await.unwrap();
        assert_eq!(processes_with(&mark), [] as [u32; 0]);
    }
}

#[tokio::test]
async fn a_forgotten_background_is_still_spared() {
    let cell = strict_cell().await;
    let mark = unique_sleep();
    let sleep = format!("sleep\0{mark}");
    let (process, _) =
        start_until_line(&cell, shell(&format!("{} echo left", daemon(&mark)))).await;
    process.wait().await.unwrap();
    drop(process);
    eventually(Duration::from_secs(5), "the daemon runs", || processes_with(&sleep).len() == 1)
        .await;
    let (another, _) = start_until_line(&cell, shell("echo ready; exec sleep 100")).await;
    another.kill_tree().await.unwrap();
    assert_eq!(processes_with(&sleep).len(), 1);
}

#[tokio::test]
async fn a_tree_that_hides_its_tag_is_found_by_its_parents() {
    let cell = strict_cell().await;
    let script = "import ctypes, os, time\n\
         if os.fork() == 0:\n\
         \x20 ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print('hidden', flush=True); time.sleep(100)\n\
         os.wait()";
    let (hider, _) = start_until_line(&cell, python(script)).await;
    let (other, _) = start_until_line(&cell, shell("echo ready; exec sleep 100")).await;
    other.kill_tree().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(
        output(&cell, shell("ls /proc | grep -c '^[0-9]'")).await.trim(),
        "6",
        "1, both hiders, sh, ls, grep"
    );
    hider.kill_tree().await.unwrap();
    assert_eq!(output(&cell, shell("echo /proc/[0-9]*")).await.split_whitespace().count(), 2);
}

#[tokio::test]
async fn two_hundred_stubborn_children_die_at_once() {
    for spec in [CellSpec::strict(), CellSpec::off()] {
        let kind = spec.isolation;
        let cell = cell(&spec).await;
        let script = "import os, signal, time\n\
             for i in range(200):\n\
             \x20 if os.fork() == 0:\n\
             \x20  os.setsid()\n\
             \x20  for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\n\
             \x20  if i % 2: os.kill(os.getpid(), signal.SIGSTOP)\n\
             \x20  while True: time.sleep(100)\n\
             print('ready', flush=True)\n\
             time.sleep(100)";
        let (process, line) = start_until_line(&cell, python(script)).await;
        assert_eq!(line, "ready");
        let started = Instant::now();
        process.kill_tree().await.unwrap();
        let took = started.elapsed();
        println!("killing 200 stubborn children, {kind:?}: {took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert_eq!(process.wait().await.unwrap().status, ExitStatus::Signal(9));
        let count = output(&cell, shell("echo alive")).await;
        assert_eq!(count, "alive\n");
    }
}

#[tokio::test]
async fn a_fork_bomb_is_bounded_and_can_be_killed() {
    let cell = strict_cell().await;
    let script = "import os, time\n\
         n = 0\n\
         while True:\n\
         \x20 try: pid = os.fork()\n\
         \x20 except OSError: break\n\
         \x20 if pid == 0: time.sleep(100)\n\
         \x20 n += 1\n\
         print(n, flush=True)\n\
         while True:\n\
         \x20 try:\n\
         \x20  if os.fork() == 0: os._exit(0)\n\
         \x20 except OSError: pass";
    let (bomb, line) = start_until_line(&cell, python(script)).await;
    let forks: u32 = line.parse().unwrap();
    assert!((200..256).contains(&forks), "{forks}");
    // The limit applies to the program, not to the cell: another program still starts.
    let (witness, _) = start_until_line(&cell, shell("echo ready; exec sleep 100")).await;
    bomb.kill_tree().await.unwrap();
    assert_eq!(bomb.wait().await.unwrap().status, ExitStatus::Signal(9));
    witness.signal(15).await.unwrap();
    assert_eq!(witness.wait().await.unwrap().status, ExitStatus::Signal(15));
    assert_eq!(output(&cell, shell("(exit 3); echo $?")).await, "3\n");
}

#[tokio::test]
async fn killing_the_only_tree_kills_everything() {
    let cell = strict_cell().await;
    let (process, _) = start_until_line(&cell, shell("sleep 100 & echo ready; wait")).await;
    assert!(process.kill_tree().await.unwrap());
    assert!(process.kill_tree().await.is_ok(), "again is no error");
}

#[tokio::test]
async fn many_short_programs_leave_no_trace() {
    for spec in [CellSpec::strict(), CellSpec::off()] {
        let cell = cell(&spec).await;
        for _ in 0..40 {
            let mut running = Vec::new();
            for _ in 0..30 {
                running.push(cell.spawn(shell("exit 5")).await.unwrap());
            }
            for process in running {
                assert_eq!(process.wait().await.unwrap().status, ExitStatus::Code(5));
            }
        }
    }
}
