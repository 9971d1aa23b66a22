//! The local side alone: what is packed locally comes out locally, and nothing of an archive gets out.

use std::fs;
use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;

use super::channel::{bridge, start, take_blocking};
use super::local::Access;
use super::pack::Packer;
use super::unpack::unpack;
use crate::tar::{END, Entry, EntryKind, encode};
use crate::{ErrorKind, Result};

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("transfer-{}", crate::random_hex(8)));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn unpacked(into: &Path, archive: Vec<u8>) -> Result<super::Transferred> {
    let (mut giver, mut taker) = bridge();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for piece in archive.chunks(1000) {
                if !giver.give_blocking(Ok(piece.to_vec().into())) {
                    return;
                }
            }
        });
        unpack(into, &mut taker, Access::Owner)
    })
}

fn entry(path: &str, kind: EntryKind) -> Vec<u8> {
    encode(&Entry { path: path.into(), kind, mode: 0o644, modified: 0 })
}

#[test]
fn a_directory_goes_there_and_back() {
    let (from, to) = (Folder::new(), Folder::new());
    fs::create_dir_all(from.join("deep/er")).unwrap();
    fs::write(from.join("deep/er/a b\nc"), vec![7; 700_000]).unwrap();
    fs::write(from.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("deep/er", from.join("inside")).unwrap();
    std::os::unix::fs::symlink("/etc", from.join("outside")).unwrap();
    std::os::unix::fs::symlink("inside/../../..", from.join("through")).unwrap();
    let (giver, mut taker) = bridge();
    let packer = Packer::new(from.0.clone(), giver);
    let packing = start("test", move || packer.pack()).unwrap();
    let done = unpack(&to.0, &mut taker, Access::Owner).unwrap();
    assert_eq!((done.files, done.bytes), (2, 700_000));
    assert_eq!(fs::read(to.join("deep/er/a b\nc")).unwrap(), vec![7; 700_000]);
    assert_eq!(fs::read_link(to.join("inside")).unwrap(), Path::new("deep/er"));
    assert!(fs::symlink_metadata(to.join("outside")).is_err());
    let (giver, taker) = bridge();
    drop((giver, taker));
    // The thread ends a moment after its last byte was taken.
    let mut packed = std::pin::pin!(packing.get("test"));
    let packed = loop {
        match futures_util::FutureExt::now_or_never(&mut packed) {
            Some(packed) => break packed,
            None => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    };
    assert_eq!(packed.unwrap().skipped, ["outside", "through"]);
}

#[test]
fn nothing_is_written_through_a_link_of_the_archive() {
    let (to, other) = (Folder::new(), Folder::new());
    for target in [other.0.to_str().unwrap(), "../.."] {
        let mut archive = entry("link", EntryKind::Symlink(target.into()));
        archive.extend(entry("link/x", EntryKind::File(0)));
        archive.extend(END);
        let _ = unpacked(&to.0, archive);
        assert_eq!(fs::read_dir(&other.0).unwrap().count(), 0);
        let _ = fs::remove_dir_all(to.join("link"));
    }
}

#[test]
fn links_that_lead_out_only_through_others_are_left_out() {
    let to = Folder::new();
    fs::create_dir(to.join("root")).unwrap();
    let mut archive = entry("a/b/c/x", EntryKind::File(0));
    archive.extend(entry("up", EntryKind::Symlink("a/b/c/back/../..".into())));
    archive.extend(entry("a/b/c/back", EntryKind::Symlink("../../..".into())));
    archive.extend(END);
    let done = unpacked(&to.join("root"), archive).unwrap();
    assert_eq!(done.skipped, ["up"]);
    assert!(fs::symlink_metadata(to.join("root/up")).is_err());
    assert!(fs::symlink_metadata(to.join("root/a/b/c/back")).is_ok());
}

#[test]
fn hard_links_reach_only_files_of_the_archive() {
    let to = Folder::new();
    let mut archive = entry("a", EntryKind::Symlink("/etc/passwd".into()));
    archive.extend(entry("b", EntryKind::HardLink("a".into())));
    archive.extend(END);
    assert_eq!(unpacked(&to.0, archive).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(fs::symlink_metadata(to.join("b")).is_err());
}

#[test]
fn a_taker_that_is_dropped_ends_the_thread() {
    let from = Folder::new();
    fs::write(from.join("large"), vec![0; 8 << 20]).unwrap();
    let (giver, mut taker) = bridge();
    let packer = Packer::new(from.0.clone(), giver);
    let packing = start("test", move || packer.pack()).unwrap();
    assert!(take_blocking(&mut taker).is_some());
    drop(taker);
    let done = futures_util::stream::once(packing.get("test"));
    let mut done = std::pin::pin!(done);
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    for _ in 0..1000 {
        if done.poll_next_unpin(&mut context).is_ready() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the thread outlives its transfer");
}
