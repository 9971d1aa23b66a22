//! `cargo xtask demo`: the picture of a terminal session in the README, made of what the program prints on a terminal.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::shown;
use crate::suites::cargo;
use crate::workspace;

/// The picture, from the root of the workspace.
const PICTURE: &str = "docs/demo.svg";

/// The session. Each command runs on a terminal of its own, in one empty directory.
const SESSION: [&str; 6] = [
    "sandboxes run 'id -un; echo /*; cat /etc/shadow'",
    "sandboxes run --lang python 'sum(n * n for n in range(10))'",
    "sandboxes run 'curl -sS https://example.com'",
    "sandboxes create --name lab",
    "sandboxes exec lab --lang python 'x = 41'; sandboxes exec lab --lang python 'x + 1'",
    "sandboxes run -t 1 --lang python 'while True: pass'; echo status $?",
];

/// Characters of a line; longer ones are wrapped as a terminal does it.
const COLUMNS: usize = 100;

/// Pixels of a character and of a line, and around the text.
const CHARACTER: f64 = 8.4;
const LINE: usize = 20;
const MARGIN: usize = 16;

/// Builds the program, runs the session, and writes the picture.
pub(crate) fn run(arguments: &[String]) -> Result<bool, String> {
    if let Some(argument) = arguments.first() {
        return Err(format!("unknown argument {argument:?}"));
    }
    if !shown(&mut cargo(&["build", "--package", "code-sandboxes-cli", "--features", "full"])) {
        return Err("the program does not build".to_owned());
    }
    let home = workspace::target().join("demo");
    if home.exists() {
        fs::remove_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    }
    let bin = home.join("bin");
    fs::create_dir_all(&bin).map_err(|error| format!("{}: {error}", bin.display()))?;
    let program = workspace::target().join("debug/sandboxes");
    std::os::unix::fs::symlink(&program, bin.join("sandboxes"))
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let mut text = String::new();
    for command in SESSION {
        let _ = writeln!(text, "$ {command}");
        text.push_str(&on_terminal(command, &home)?);
    }
    on_terminal("sandboxes rm lab", &home)?;
    fs::write(workspace::root().join(PICTURE), svg(&text))
        .map_err(|error| format!("{PICTURE}: {error}"))?;
    println!("{text}\n{PICTURE}: written");
    Ok(true)
}

/// Runs a line on a terminal and returns what it shows there.
fn on_terminal(line: &str, home: &Path) -> Result<String, String> {
    let mut script = Command::new("script");
    script.args(["--quiet", "--command", line, "/dev/null"]).current_dir(home);
    let path = std::env::var("PATH").unwrap_or_default();
    script.env("PATH", format!("{}:{path}", home.join("bin").display()));
    script.env("CODE_SANDBOXES_RUNTIME_DIR", home.join("run")).env_remove("RUST_LOG");
    script.env("CODE_SANDBOXES_SUPERVISOR_IDLE", "1");
    let output =
        script.stdin(Stdio::null()).output().map_err(|error| format!("script: {error}"))?;
    Ok(without_control(&String::from_utf8_lossy(&output.stdout)))
}

/// The text without escape sequences, carriage returns and what they overwrite.
fn without_control(text: &str) -> String {
    let mut plain = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' => {
                // A sequence ends with its first letter.
                let _ = letters.by_ref().find(char::is_ascii_alphabetic);
            }
            '\n' => plain.push('\n'),
            letter if letter.is_control() => {}
            letter => plain.push(letter),
        }
    }
    plain
}

/// The session as a picture. Prompts are green, and messages of the program grey.
fn svg(text: &str) -> String {
    let lines: Vec<String> = text.lines().flat_map(wrapped).collect();
    let height = lines.len() * LINE + 2 * MARGIN;
    let width = (COLUMNS as f64 * CHARACTER) as usize + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>A terminal session with sandboxes</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1e1e2e\"/>\n\
         <g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" font-size=\"14\" xml:space=\"preserve\">\n"
    );
    for (index, line) in lines.iter().enumerate() {
        let colour = match line {
            line if line.starts_with("$ ") => "#a6e3a1",
            line if line.starts_with("sandboxes: ") => "#9399b2",
            _ => "#cdd6f4",
        };
        let y = MARGIN + (index + 1) * LINE - LINE / 4;
        let _ = writeln!(
            svg,
            "<text x=\"{MARGIN}\" y=\"{y}\" fill=\"{colour}\">{}</text>",
            escaped(line)
        );
    }
    svg + "</g>\n</svg>\n"
}

fn wrapped(line: &str) -> Vec<String> {
    let letters: Vec<char> = line.chars().collect();
    match letters.is_empty() {
        true => vec![String::new()],
        false => letters.chunks(COLUMNS).map(|part| part.iter().collect()).collect(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_becomes_lines_of_a_picture() {
        let shown = without_control("$ a <b>\r\n\u{1b}[31mred\u{1b}[0m & plain\r\n");
        assert_eq!(shown, "$ a <b>\nred & plain\n");
        let picture = svg(&shown);
        assert!(picture.contains(">$ a &lt;b&gt;</text>"), "{picture}");
        assert!(picture.contains("fill=\"#cdd6f4\">red &amp; plain</text>"), "{picture}");
        assert_eq!(wrapped(&"x".repeat(COLUMNS + 1)).len(), 2);
    }

    #[test]
    fn the_picture_in_the_readme_has_the_session() {
        let picture = fs::read_to_string(workspace::root().join(PICTURE)).unwrap();
        for command in SESSION {
            let start: String = format!("$ {command}").chars().take(40).collect();
            assert!(picture.contains(&escaped(&start)), "run `cargo xtask demo`: {command}");
        }
    }
}
