//! Images, in terminals that can show them, and as files otherwise.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Maximum number of base64 characters in one command of kitty's protocol.
const KITTY_CHUNK: usize = 4096;
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// A protocol for images in a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Kitty's graphics protocol: PNG.
    Kitty,
    /// The inline images of iTerm2: any format that the terminal knows.
    Iterm,
}

/// Returns the protocol of this terminal, as its environment variables declare it.
pub(super) fn protocol() -> Option<Protocol> {
    detect(|name| env::var(name).ok())
}

fn detect(variable: impl Fn(&str) -> Option<String>) -> Option<Protocol> {
    let term = variable("TERM").unwrap_or_default();
    // A multiplexer passes no images on, but inherits the variables of the terminal around it.
    if term.starts_with("screen") || term.starts_with("tmux") || variable("TMUX").is_some() {
        return None;
    }
    match variable("TERM_PROGRAM").unwrap_or_default().as_str() {
        "iTerm.app" | "WezTerm" | "mintty" => return Some(Protocol::Iterm),
        "ghostty" => return Some(Protocol::Kitty),
        _ => {}
    }
    let is_kitty = matches!(term.as_str(), "xterm-kitty" | "xterm-ghostty");
    (is_kitty || variable("KITTY_WINDOW_ID").is_some()).then_some(Protocol::Kitty)
}

/// Returns the escape sequence that shows an image; `None` for a format that the terminal does not know, or invalid base64.
pub(super) fn shown(protocol: Protocol, encoded: &str) -> Option<String> {
    // Decoding and encoding again makes sure that only base64 reaches the terminal.
    let image = decode(encoded)?;
    let encoded = STANDARD.encode(&image);
    match protocol {
        Protocol::Kitty => image.starts_with(PNG).then(|| kitty(&encoded)),
        Protocol::Iterm => {
            Some(format!("\x1b]1337;File=size={};inline=1:{encoded}\x07\n", image.len()))
        }
    }
}

fn kitty(encoded: &str) -> String {
    let mut text = String::with_capacity(encoded.len() + encoded.len() / 256 + 32);
    let chunks = encoded.as_bytes().chunks(KITTY_CHUNK);
    let last = chunks.len().saturating_sub(1);
    for (index, chunk) in chunks.enumerate() {
        let keys = if index == 0 { "a=T,f=100," } else { "" };
        let more = u8::from(index < last);
        let chunk = String::from_utf8_lossy(chunk);
        // Writing to a string does not fail.
        let _ = write!(text, "\x1b_G{keys}m={more};{chunk}\x1b\\");
    }
    text.push('\n');
    text
}

fn decode(encoded: &str) -> Option<Vec<u8>> {
    let packed: String = encoded.split_ascii_whitespace().collect();
    STANDARD.decode(packed).ok()
}

/// Saves files of this session in a private directory, which is created for the first file and is kept.
#[derive(Debug, Default)]
pub(super) struct ImageSaver {
    directory: Option<PathBuf>,
    count: usize,
}

impl ImageSaver {
    /// Saves a base64 representation.
    pub(super) fn save_encoded(&mut self, encoded: &str, extension: &str) -> io::Result<PathBuf> {
        let data = decode(encoded).ok_or_else(|| io::Error::other("the data is not base64"))?;
        self.save(&data, extension)
    }

    /// Saves bytes, and returns the path.
    pub(super) fn save(&mut self, data: &[u8], extension: &str) -> io::Result<PathBuf> {
        let directory = match &self.directory {
            Some(directory) => directory.clone(),
            None => {
                let made = tempfile::Builder::new()
                    .prefix("sandboxes-repl-")
                    .permissions(Permissions::from_mode(0o700))
                    .tempdir()?
                    .keep();
                self.directory.insert(made).clone()
            }
        };
        self.count += 1;
        let path = directory.join(format!("{}.{extension}", self.count));
        fs::write(&path, data)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol_for(variables: &[(&str, &str)]) -> Option<Protocol> {
        detect(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn terminals_are_detected_by_their_variables() {
        assert_eq!(protocol_for(&[("TERM", "xterm-kitty")]), Some(Protocol::Kitty));
        assert_eq!(
            protocol_for(&[("TERM", "xterm-256color"), ("KITTY_WINDOW_ID", "1")]),
            Some(Protocol::Kitty)
        );
        assert_eq!(protocol_for(&[("TERM_PROGRAM", "iTerm.app")]), Some(Protocol::Iterm));
        assert_eq!(protocol_for(&[("TERM_PROGRAM", "WezTerm")]), Some(Protocol::Iterm));
        assert_eq!(protocol_for(&[("TERM", "tmux-256color"), ("KITTY_WINDOW_ID", "1")]), None);
        assert_eq!(protocol_for(&[("TERM", "xterm-kitty"), ("TMUX", "/tmp/x")]), None);
        assert_eq!(protocol_for(&[("TERM", "xterm-256color")]), None);
    }

    #[test]
    fn only_base64_reaches_the_terminal() {
        let png = [PNG, &[7; 5000]].concat();
        let encoded = STANDARD.encode(&png);
        let text = shown(Protocol::Kitty, &encoded).unwrap();
        let parts: Vec<_> =
            text.trim_end().split("\x1b\\").filter(|part| !part.is_empty()).collect();
        assert!(parts[0].starts_with("\x1b_Ga=T,f=100,m=1;"), "{:?}", &parts[0][..20]);
        assert!(parts[1].starts_with("\x1b_Gm=0;") && parts.len() == 2);
        let data: String = parts.iter().map(|part| part.split_once(';').unwrap().1).collect();
        assert_eq!(data, encoded);
        assert_eq!(
            shown(Protocol::Iterm, &STANDARD.encode("GIF89a")).unwrap(),
            "\x1b]1337;File=size=6;inline=1:R0lGODlh\x07\n"
        );
        assert_eq!(shown(Protocol::Kitty, &STANDARD.encode("GIF89a")), None);
        for bad in ["\x1b\\\x1b[2J", "a;b", "\x07"] {
            assert_eq!(shown(Protocol::Iterm, bad), None, "{bad:?}");
        }
    }

    #[test]
    fn only_this_user_can_read_the_files() {
        let mut saver = ImageSaver::default();
        let first = saver.save_encoded("aGVs\nbG8=", "png").unwrap();
        let second = saver.save(b"<svg/>", "svg").unwrap();
        assert_eq!(fs::read(&first).unwrap(), b"hello");
        let directory = first.parent().unwrap();
        assert_eq!(second.parent(), Some(directory));
        assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        saver.save_encoded("\x1b", "png").unwrap_err();
        fs::remove_dir_all(directory).unwrap();
    }
}
