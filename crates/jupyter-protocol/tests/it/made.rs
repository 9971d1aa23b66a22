//! The committed vectors are what the reference makes of them today.

use std::path::Path;
use std::process::Command;

use crate::Case;
use crate::harness::python;

pub(crate) const CASES: &[Case] = &[("vectors_are_what_the_reference_makes", vectors)];

fn vectors() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(python().unwrap());
    command.arg(committed.join("make_vectors.py")).arg("--into").arg(folder.path());
    assert!(command.status().unwrap().success());
    let mut made: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    made.sort_by_key(std::fs::DirEntry::file_name);
    assert_eq!(made.len(), 5, "{made:?}");
    for file in made {
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        let (now, before) = (text(&file.path()), text(&committed.join(file.file_name())));
        assert!(now == before, "{:?} has changed: cargo xtask vectors", file.file_name());
    }
}
