//! Snapshots on disk: complete or missing, private to their user, and damaged ones reported.

use std::os::unix::fs::PermissionsExt as _;

use bytes::Bytes;

use super::*;

const TEST: &str = "test";

fn store() -> (tempfile::TempDir, SnapshotStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = SnapshotStore::new(Some(directory.path().join("snapshots")));
    (directory, store)
}

fn content(text: &'static str) -> ByteStream {
    Box::pin(stream::iter([Ok(Bytes::from_static(text.as_bytes()))]))
}

async fn make(store: &SnapshotStore, name: &str) -> Result<StoredSnapshot> {
    let mut writer = store.begin(TEST, name)?;
    writer.write(TEST, "files", content("abc")).await?;
    writer.finish(TEST, SnapshotInfo::default(), Manifest::default())
}

fn hidden(store: &SnapshotStore) -> usize {
    let names = fs::read_dir(store.root(TEST).unwrap()).unwrap().map(|entry| entry.unwrap());
    names.filter(|entry| entry.file_name().to_str().unwrap().starts_with(HIDDEN)).count()
}

#[test]
fn names_lead_nowhere() {
    for name in ["a", "9", "a.b-c_D", &"x".repeat(64)] {
        check_snapshot_name(name).unwrap();
    }
    let long = "x".repeat(10 << 10);
    for name in ["", ".", "..", "../x", "a/b", "/a", ".a", "-a", "a b", "a\n", "é", "a\0", &long] {
        let error = check_snapshot_name(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name:?}");
        assert!(error.to_string().len() < 300, "{error}");
    }
}

#[tokio::test]
async fn a_snapshot_is_whole_or_not_there() {
    let (_directory, store) = store();
    assert!(store.list(TEST).unwrap().is_empty());
    let stored = make(&store, "one").await.unwrap();
    assert_eq!(stored.info.size, 3);
    assert_eq!(store.find(TEST, "one").unwrap(), stored);
    assert_eq!(store.find(TEST, &stored.info.id).unwrap(), stored);
    assert_eq!(make(&store, "one").await.unwrap_err().kind(), ErrorKind::AlreadyExists);

    let mut writer = store.begin(TEST, "two").unwrap();
    writer.write(TEST, "files", content("abc")).await.unwrap();
    assert_eq!(store.list(TEST).unwrap().len(), 1);
    drop(writer);
    assert_eq!((store.list(TEST).unwrap().len(), hidden(&store)), (1, 0));

    // Of two with one name, the first that is finished gets it.
    let (one, other) = (store.begin(TEST, "two").unwrap(), store.begin(TEST, "two").unwrap());
    one.finish(TEST, SnapshotInfo::default(), Manifest::default()).unwrap();
    let second = other.finish(TEST, SnapshotInfo::default(), Manifest::default());
    assert_eq!(second.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(hidden(&store), 0);

    store.delete(TEST, "one").unwrap();
    assert_eq!(store.delete(TEST, "one").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(stored.read(TEST, "files").await.err().unwrap().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_damaged_snapshot_says_so() {
    let (_directory, store) = store();
    let stored = make(&store, "one").await.unwrap();
    fs::write(stored.directory.join("files"), "ab").unwrap();
    let error = stored.read(TEST, "files").await.err().unwrap();
    assert!(error.to_string().contains("damaged"), "{error}");
}

#[tokio::test]
async fn a_damaged_snapshot_is_in_nobodys_way() {
    let (_directory, store) = store();
    let broken = make(&store, "one").await.unwrap();
    let other = make(&store, "two").await.unwrap();
    fs::write(broken.directory.join(DESCRIPTION), "").unwrap();
    assert_eq!(store.list(TEST).unwrap(), std::slice::from_ref(&other));
    assert_eq!(store.find(TEST, &other.info.id).unwrap(), other);
    let error = store.find(TEST, "one").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    store.delete(TEST, "one").unwrap();
    assert_eq!(store.find(TEST, "one").unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_directory_that_others_can_enter_is_refused() {
    let (_directory, store) = store();
    make(&store, "one").await.unwrap();
    let root = store.root(TEST).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    for error in [
        store.list(TEST).unwrap_err(),
        store.find(TEST, "one").unwrap_err(),
        store.begin(TEST, "two").unwrap_err(),
        store.delete(TEST, "one").unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }
}

#[tokio::test]
async fn what_the_dead_left_is_removed() {
    let (_directory, store) = store();
    let writer = store.begin(TEST, "mine").unwrap();
    let abandoned = store.root(TEST).unwrap().join(".new-0");
    fs::create_dir(&abandoned).unwrap();
    for path in [&abandoned, &writer.directory] {
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        File::open(path).unwrap().set_modified(old).unwrap();
    }
    make(&store, "one").await.unwrap();
    assert!(!abandoned.exists());
    assert!(writer.directory.exists(), "one that is being made has a lock");
}
