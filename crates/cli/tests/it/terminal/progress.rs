//! The progress of a notebook on a terminal.

use std::fs;

use super::pty::Home;

#[test]
fn a_terminal_shows_the_current_cell() {
    let home = Home::new();
    let path = home.path().join("in.ipynb");
    let cells = r#"[{"cell_type": "code", "source": "\nx = 6\n"},
        {"cell_type": "markdown", "source": "prose"},
        {"cell_type": "code", "source": "x * 7"}]"#;
    fs::write(&path, format!("{{\"cells\": {cells}}}")).unwrap();
    let (status, shown) = home.terminal(&["run", path.to_str().unwrap()]).end();
    assert_eq!(status, 0, "{shown}");
    let lines: Vec<_> = shown.lines().map(str::trim_end).collect();
    let expected = [
        "sandboxes: note: code cell 1 of 2: x = 6",
        "sandboxes: note: code cell 2 of 2: x * 7",
        "42",
    ];
    assert_eq!(lines, expected, "{shown}");
    let (status, shown) = home.terminal(&["run", "-q", path.to_str().unwrap()]).end();
    assert_eq!((status, shown.trim_end()), (0, "42"));
}

#[test]
fn a_large_copy_has_a_bar_and_a_small_one_none() {
    let home = Home::new();
    let id = home.create();
    for (size, has_bar) in [(64 << 20, true), (1 << 10, false)] {
        let path = home.path().join("data");
        fs::write(&path, vec![b'x'; size]).unwrap();
        let target = format!("{id}:data");
        let (status, shown) = home.terminal(&["cp", path.to_str().unwrap(), &target]).end();
        assert_eq!((status, shown.contains("uploading ")), (0, has_bar), "{size}: {shown}");
        let quiet = home.terminal(&["cp", "-q", path.to_str().unwrap(), &target]).end();
        assert_eq!((quiet.0, quiet.1.contains("uploading ")), (0, false), "{}", quiet.1);
    }
}
