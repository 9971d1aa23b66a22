//! Figures, printed for information, with bounds wide enough for a busy machine.
#![expect(clippy::print_stderr, reason = "the figures are the point")]

use std::time::{Duration, Instant};

use sandbox_cells::Start;

use crate::{
    Case,
    harness::{WARM, Worker, Zygote, plain_fork},
};

pub(crate) const CASES: &[Case] = &[("speed", speed)];

fn median(count: usize, mut sample: impl FnMut() -> Duration) -> Duration {
    let mut samples: Vec<_> = (0..count).map(|_| sample()).collect();
    samples.sort();
    samples[count / 2]
}

fn timed<T>(action: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let value = action();
    (start.elapsed(), value)
}

fn speed() {
    let start =
        |warm| timed(|| Zygote::start(&Start { warm, preimports: vec![], ..Start::default() })).0;
    eprintln!("zygote cold {:?}, warm {:?}", median(5, || start(false)), median(5, || start(true)));
    let fork = median(50, || timed(|| Worker::fork(&WARM, &plain_fork()).expect("worker")).0);
    eprintln!("fork to ready {fork:?}");
    let mut worker = Worker::new();
    let first = timed(|| worker.run("1+1")).0;
    let trivial = median(500, || timed(|| worker.run("1+1")).0);
    eprintln!("1+1 first {first:?}, then {trivial:?}");
    let measured = "import time\nstart = time.perf_counter()\nfor i in range(10_000): print(i)\nelapsed = time.perf_counter() - start\nelapsed";
    let prints = median(11, || {
        let text = worker.run(measured).text().map(str::to_owned);
        Duration::from_secs_f64(text.and_then(|text| text.parse().ok()).expect("seconds"))
    });
    let plain = median(11, || {
        plain_python(&format!(
            "{measured}\nimport sys\nsys.stdout.flush(); print(elapsed, file=sys.stderr)"
        ))
    });
    eprintln!(
        "10,000 prints {prints:?}, plain python {plain:?}, ratio {:.2}",
        prints.as_secs_f64() / plain.as_secs_f64()
    );
    let (flood, outcome) =
        timed(|| worker.run("for _ in range(100): print('x' * (1 << 20), end='')"));
    eprintln!("100 MiB of output {flood:?}");
    assert_eq!(outcome.stdout.len(), 100 << 20);
    let idle = Worker::new();
    let memory =
        std::fs::read_to_string(format!("/proc/{}/smaps_rollup", idle.pid)).expect("smaps");
    let private = memory.lines().find(|line| line.starts_with("Private_Dirty")).unwrap_or("");
    eprintln!("idle worker {private}");
    assert!(fork < Duration::from_millis(50), "{fork:?}");
    assert!(trivial < Duration::from_millis(5), "{trivial:?}");
    assert!(flood < Duration::from_secs(20), "{flood:?}");
}

/// The same work in an ordinary interpreter with its output in a pipe.
fn plain_python(code: &str) -> Duration {
    let output = std::process::Command::new(&*crate::harness::PYTHON)
        .args(["-I", "-c", code])
        .output()
        .expect("python starts");
    let text = String::from_utf8_lossy(&output.stderr);
    Duration::from_secs_f64(text.trim().parse().expect("seconds"))
}
