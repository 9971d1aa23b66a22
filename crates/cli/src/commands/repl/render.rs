//! Renders the events of a cell for a terminal.

use std::io;
use std::path::PathBuf;

use code_sandboxes::{EventKind, MimeType, ResultItem};

use super::image::{self, ImageSaver, Protocol};
use crate::commands::run::traceback;
use crate::error::CliError;
use crate::printer::Printer;

/// Base64 formats with their file extensions, the best first.
const ENCODED: [(MimeType, &str); 4] = [
    (MimeType::ImagePng, "png"),
    (MimeType::ImageJpeg, "jpg"),
    (MimeType::ImageGif, "gif"),
    (MimeType::ApplicationPdf, "pdf"),
];
/// Text formats for other programs, with their file extensions.
const FILE_FORMATS: [(MimeType, &str); 2] =
    [(MimeType::ImageSvg, "svg"), (MimeType::TextHtml, "html")];
/// Text formats that are readable in a terminal, the best first.
const READABLE: [MimeType; 3] = [MimeType::TextPlain, MimeType::TextMarkdown, MimeType::TextLatex];

/// Renders events.
#[derive(Debug)]
pub(super) struct Renderer<'a> {
    printer: &'a Printer,
    protocol: Option<Protocol>,
    saver: ImageSaver,
    /// True when the last line on the screen is unfinished.
    in_line: bool,
}

impl<'a> Renderer<'a> {
    /// Makes the renderer of this terminal.
    pub(super) fn new(printer: &'a Printer) -> Self {
        Self { printer, protocol: image::protocol(), saver: ImageSaver::default(), in_line: false }
    }

    /// Renders one event. Output is printed unchanged.
    pub(super) async fn show(&mut self, event: &EventKind) -> Result<(), CliError> {
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

    /// Prints output of both streams, in the order of arrival.
    async fn print(&mut self, data: &[u8]) -> Result<(), CliError> {
        if let Some(last) = data.last() {
            self.in_line = *last != b'\n';
        }
        self.printer.stdout(data).await
    }

    /// Records whether typed text has ended the line.
    pub(super) fn note_line(&mut self, is_ended: bool) {
        self.in_line &= !is_ended;
    }

    /// Ends an unfinished line.
    pub(super) async fn end_line(&mut self) -> Result<(), CliError> {
        if self.in_line { self.print(b"\n").await } else { Ok(()) }
    }

    async fn show_item(&mut self, item: &ResultItem) -> Result<(), CliError> {
        if item.data.is_empty() {
            return Ok(()); // a placeholder of a later display
        }
        self.end_line().await?;
        let mut is_shown = false;
        if let Some((encoded, extension)) = first(item, &ENCODED) {
            let inline = self.protocol.and_then(|protocol| image::shown(protocol, encoded));
            match inline {
                // The text representation of an image is only a placeholder.
                Some(inline) => return self.print(inline.as_bytes()).await,
                None => {
                    let saved = self.saver.save_encoded(encoded, extension);
                    self.note_saved(saved, extension);
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
        if let Some((text, extension)) = first(item, &FILE_FORMATS) {
            let saved = self.saver.save(text.as_bytes(), extension);
            self.note_saved(saved, extension);
            is_shown = true;
        }
        if !is_shown {
            self.printer.note(&format!("not shown: a result of type {}", types(item)));
        }
        Ok(())
    }

    fn note_saved(&self, saved: io::Result<PathBuf>, extension: &str) {
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
