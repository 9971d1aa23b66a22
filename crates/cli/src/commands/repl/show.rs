//! What a cell gives, as a person at a terminal wants to see it.

use std::io;
use std::path::PathBuf;

use code_sandboxes::{EventKind, MimeType, ResultItem};

use super::image::{self, Album, Protocol};
use crate::commands::run::traceback;
use crate::printer::Printer;
use crate::problem::Problem;

/// Formats that are base64, from the best one on, with the extension of a file.
const ENCODED: [(MimeType, &str); 4] = [
    (MimeType::ImagePng, "png"),
    (MimeType::ImageJpeg, "jpg"),
    (MimeType::ImageGif, "gif"),
    (MimeType::ApplicationPdf, "pdf"),
];
/// Formats that are text for other programs.
const FOR_OTHERS: [(MimeType, &str); 2] =
    [(MimeType::ImageSvg, "svg"), (MimeType::TextHtml, "html")];
/// Formats that are text for people.
const READABLE: [MimeType; 3] = [MimeType::TextPlain, MimeType::TextMarkdown, MimeType::TextLatex];

/// Shows events.
#[derive(Debug)]
pub(super) struct Screen<'a> {
    printer: &'a Printer,
    protocol: Option<Protocol>,
    album: Album,
    /// Whether the last thing printed did not end its line.
    in_line: bool,
}

impl<'a> Screen<'a> {
    /// The screen of this terminal.
    pub(super) fn new(printer: &'a Printer) -> Self {
        Self { printer, protocol: image::protocol(), album: Album::default(), in_line: false }
    }

    /// Shows one event. What the code printed goes out as it is.
    pub(super) async fn show(&mut self, event: &EventKind) -> Result<(), Problem> {
        match event {
            EventKind::Output { data, .. } => self.print(data).await,
            EventKind::Display { item, .. } => self.show_item(item).await,
            EventKind::Error(error) => {
                self.end_line().await?;
                self.print(traceback(error).as_bytes()).await
            }
            EventKind::Hint { text } => {
                self.end_line().await?;
                self.printer.hint(text);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Both streams are one screen, in the order of arrival.
    async fn print(&mut self, data: &[u8]) -> Result<(), Problem> {
        if let Some(last) = data.last() {
            self.in_line = *last != b'\n';
        }
        self.printer.stdout(data).await
    }

    /// Notes that what was typed ended the line.
    pub(super) fn note_line(&mut self, is_ended: bool) {
        self.in_line &= !is_ended;
    }

    /// Begins a line, unless it is at the beginning of one.
    pub(super) async fn end_line(&mut self) -> Result<(), Problem> {
        if self.in_line { self.print(b"\n").await } else { Ok(()) }
    }

    async fn show_item(&mut self, item: &ResultItem) -> Result<(), Problem> {
        if item.data.is_empty() {
            return Ok(()); // a place for what comes later
        }
        self.end_line().await?;
        let mut is_shown = false;
        if let Some((encoded, extension)) = first(item, &ENCODED) {
            let inline = self.protocol.and_then(|protocol| image::shown(protocol, encoded));
            match inline {
                // The text of an image says no more than that it is one.
                Some(inline) => return self.print(inline.as_bytes()).await,
                None => {
                    let saved = self.album.save_encoded(encoded, extension);
                    self.say_saved(saved, extension);
                }
            }
            is_shown = true;
        }
        if let Some(text) = READABLE.iter().find_map(|mime| item.get(*mime)) {
            return self.print(format!("{text}\n").as_bytes()).await;
        }
        if let Some(value) = item.json() {
            return self.print(format!("{value:#}\n").as_bytes()).await;
        }
        if let Some((text, extension)) = first(item, &FOR_OTHERS) {
            let saved = self.album.save(text.as_bytes(), extension);
            self.say_saved(saved, extension);
            is_shown = true;
        }
        if !is_shown {
            self.printer.note(&format!("not shown: a result of type {}", types(item)));
        }
        Ok(())
    }

    fn say_saved(&self, saved: io::Result<PathBuf>, extension: &str) {
        match saved {
            Ok(path) => self.printer.note(&format!("{extension} saved: {}", path.display())),
            Err(error) => self.printer.warning(&format!("{extension} not saved: {error}")),
        }
    }
}

fn first<'i>(
    item: &'i ResultItem,
    of: &[(MimeType, &'static str)],
) -> Option<(&'i str, &'static str)> {
    of.iter().find_map(|(mime, extension)| Some((item.get(*mime)?, *extension)))
}

fn types(item: &ResultItem) -> String {
    item.data.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}
