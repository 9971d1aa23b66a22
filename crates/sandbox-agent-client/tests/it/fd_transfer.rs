//! Large files that are taken from the agent's process as descriptors, compared with files that are sent.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use rustix::process::{Pid, Signal, kill_process};
use sandbox_agent_client::{AgentFiles, LocateProcess};
use sandbox_core::{ByteRange, ByteStream, ErrorKind};
use sandbox_engine::host::{FileSystem as _, ProcessHost as _};
use tokio::time::timeout;

use crate::support::{TestBox, collect, may_look};

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// More than may be on its way over a connection.
const LARGE: usize = 40 << 20;

/// The range of a whole file.
const ALL: ByteRange = ByteRange { offset: 0, length: None };

#[derive(Debug)]
struct Known(Option<u32>);

#[async_trait]
impl LocateProcess for Known {
    async fn pid(&self) -> Option<u32> {
        self.0
    }
}

impl TestBox {
    fn number(&self) -> u32 {
        self.agent.id().expect("it runs")
    }

    /// Returns files that are taken where this process may access the agent.
    fn taken(&self) -> AgentFiles {
        self.files().taken_from(Arc::new(Known(Some(self.number()))))
    }

    /// Returns both kinds of files.
    fn ways(&self) -> [AgentFiles; 2] {
        [self.files(), self.taken()]
    }

    fn make(&self, name: &str, size: usize) -> Vec<u8> {
        let content: Vec<u8> = (0..size).map(|place| (place % 251) as u8).collect();
        std::fs::write(self.path(name), &content).expect("a file");
        content
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.number()).ok().and_then(Pid::from_raw).expect("a number");
        kill_process(pid, signal).expect("it is there");
    }

    /// Counts files of the sandbox that the agent has open, where this process may access it.
    fn open_files(&self) -> usize {
        let numbers = std::fs::read_dir(format!("/proc/{}/fd", self.number()));
        let targets = numbers.into_iter().flatten().flatten();
        let own = targets.filter_map(|number| std::fs::read_link(number.path()).ok());
        let is_of_box = |target: &PathBuf| {
            target.starts_with(self.home.path()) || target.starts_with("/memfd:word (deleted)")
        };
        own.filter(is_of_box).count()
    }
}

/// Checks whether the rest arrives while the agent is stopped.
async fn arrives_without_agent(place: &TestBox, content: ByteStream, expected: bool) {
    let patience = if expected { TIMEOUT } else { Duration::from_millis(500) };
    place.signal(Signal::STOP);
    let arrived = timeout(patience, collect(content)).await;
    place.signal(Signal::CONT);
    assert_eq!(arrived.is_ok(), expected);
}

#[tokio::test]
async fn a_large_file_is_taken_where_the_agent_may_be_looked_into() {
    let place = TestBox::start().await;
    place.make("large", LARGE);
    let content = place.taken().read("large", ALL).await.unwrap();
    arrives_without_agent(&place, content, may_look()).await;
    // The control of this test.
    let content = place.files().read("large", ALL).await.unwrap();
    arrives_without_agent(&place, content, false).await;
}

#[tokio::test]
async fn both_ways_give_the_same() {
    let place = TestBox::start().await;
    let content = place.make("large", LARGE);
    place.make("small", 10);
    let sparse = File::create(place.path("sparse")).unwrap();
    sparse.set_len(6 << 30).unwrap();
    sparse.write_all_at(b"here", 5 << 30).unwrap();
    for files in place.ways() {
        let read = async |name, offset, length| {
            let range = ByteRange { offset, length };
            collect(files.read(name, range).await.unwrap()).await.unwrap()
        };
        assert!(read("large", 0, None).await == content);
        let part = read("large", 7, Some(30 << 20)).await;
        assert!(part == content[7..7 + (30 << 20)]);
        assert!(read("large", 1000, Some(u64::MAX)).await == content[1000..]);
        assert_eq!(read("large", u64::MAX, None).await, b"");
        assert_eq!(read("small", 3, None).await, [3, 4, 5, 6, 7, 8, 9]);
        let part = read("sparse", (5 << 30) - (2 << 20), Some(4 << 20)).await;
        assert_eq!((part.len(), &part[2 << 20..(2 << 20) + 4]), (4 << 20, &b"here"[..]));
        assert!(part.iter().filter(|byte| **byte != 0).count() == 4);
    }
}

#[tokio::test]
async fn a_file_that_grows_is_read_on_and_one_that_shrinks_ends() {
    let place = TestBox::start().await;
    for files in place.ways() {
        let content = place.make("large", LARGE);
        let mut grown = OpenOptions::new().append(true).open(place.path("large")).unwrap();
        let mut reading = files.read("large", ALL).await.unwrap();
        let mut first = reading.next().await.unwrap().unwrap().to_vec();
        grown.write_all(&[7; 3 << 20]).unwrap();
        first.extend(collect(reading).await.unwrap());
        assert!(first.len() == LARGE + (3 << 20) && first.starts_with(&content));
        assert!(first[LARGE..].iter().all(|byte| *byte == 7));

        let mut reading = files.read("large", ALL).await.unwrap();
        let first = reading.next().await.unwrap().unwrap().to_vec();
        grown.set_len(2 << 20).unwrap();
        let rest = timeout(TIMEOUT, collect(reading)).await.unwrap().unwrap();
        // As much as was on its way.
        assert!((2 << 20..LARGE).contains(&(first.len() + rest.len())), "{}", rest.len());
    }
}

#[tokio::test]
async fn what_is_refused_is_refused_alike() {
    let place = TestBox::start().await;
    rustix::fs::mkfifoat(rustix::fs::CWD, place.path("fifo"), 0o600.into()).unwrap();
    std::fs::create_dir(place.path("folder")).unwrap();
    std::os::unix::fs::symlink("/proc/self/environ", place.path("link")).unwrap();
    for name in ["missing", "fifo", "folder", "link", "/dev/zero", "/proc/kcore", "large/below"] {
        place.make("large", 2 << 20);
        let mut told = Vec::new();
        for files in place.ways() {
            let error = timeout(TIMEOUT, files.read(name, ALL)).await.unwrap().err().unwrap();
            told.push((error.kind(), error.to_string(), error.context().to_vec()));
        }
        assert_eq!(told[0], told[1]);
    }
}

#[tokio::test]
async fn another_process_is_not_believed_and_files_are_sent() {
    let place = TestBox::start().await;
    let content = place.make("large", LARGE);
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    let gone = ended.id();
    ended.wait().unwrap();
    let other = TestBox::start().await;
    let numbers = [None, Some(0), Some(u32::MAX), Some(1), Some(gone)];
    for number in numbers.into_iter().chain([Some(std::process::id()), Some(other.number())]) {
        let files = place.files().taken_from(Arc::new(Known(number)));
        // The second time the process is known.
        for _ in 0..2 {
            let reading = timeout(TIMEOUT, files.read("large", ALL)).await.unwrap().unwrap();
            assert!(collect(reading).await.unwrap() == content, "{number:?}");
        }
        let reading = files.read("large", ALL).await.unwrap();
        arrives_without_agent(&place, reading, false).await;
    }
}

#[tokio::test]
async fn the_agent_keeps_nothing_open() {
    let place = TestBox::start().await;
    place.make("large", LARGE);
    for files in place.ways() {
        let mut readings = Vec::new();
        for _ in 0..10 {
            let mut reading = files.read("large", ALL).await.unwrap();
            reading.next().await.unwrap().unwrap();
            readings.push(reading);
        }
        // One is read to its end, the others are cancelled.
        assert!(readings.pop().unwrap().count().await > 10);
        drop(readings);
        let closed = async {
            while place.open_files() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(TIMEOUT, closed).await.expect("a file that is not read is closed");
    }
}

#[tokio::test]
async fn the_end_of_the_box_ends_what_is_read() {
    for taken in [false, true] {
        let place = TestBox::start().await;
        place.make("large", LARGE);
        let files = if taken { place.taken() } else { place.files() };
        let mut reading = files.read("large", ALL).await.unwrap();
        reading.next().await.unwrap().unwrap();
        place.pipe.kill();
        let rest: Vec<_> = timeout(TIMEOUT, reading.collect()).await.unwrap();
        let error = rest.last().unwrap().as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
        assert!(rest.iter().filter(|piece| piece.is_err()).count() == 1);
    }
}
