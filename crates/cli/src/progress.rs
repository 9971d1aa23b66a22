//! Progress on a terminal: a line while a sandbox is being created, and a bar for large copies. Elsewhere there is neither.

use std::pin::pin;
use std::time::Duration;

use code_sandboxes::Progress;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use tokio::time::timeout;

use crate::printer::Printer;

/// Time that a creation takes before it has a line.
const LINE_DELAY: Duration = Duration::from_secs(1);

/// Interval at which a line is drawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(120);

/// Size of a copy above which it has a bar, in bytes.
const MIN_BAR_SIZE: u64 = 8 << 20;

const LINE: &str = "{spinner} {msg} {elapsed}";
const BAR: &str = "{msg} {bytes} of {total_bytes} [{bar:24}] {bytes_per_sec}, {eta} left";
const BAR_WITHOUT_END: &str = "{spinner} {msg} {bytes} {bytes_per_sec}";

/// Waits for a creation. When it takes longer than a second, a line on the terminal says what is being made, and for how
/// long; the line goes when the creation ends, or is dropped.
pub(crate) async fn creating<T>(printer: &Printer, what: &str, make: impl Future<Output = T>) -> T {
    let mut make = pin!(make);
    if !printer.shows_progress() {
        return make.await;
    }
    if let Ok(made) = timeout(LINE_DELAY, &mut make).await {
        return made;
    }
    let line = styled(ProgressBar::new_spinner(), LINE).with_elapsed(LINE_DELAY);
    line.set_message(what.to_owned());
    line.enable_steady_tick(DRAW_INTERVAL);
    make.await
}

/// Returns what a transfer reports its progress to. A bar shows it once more than 8 MiB are moved, or will be.
pub(crate) fn transfer(printer: &Printer, what: String) -> impl FnMut(Progress) + Send + use<> {
    let shows = printer.shows_progress();
    let mut shown: Option<ProgressBar> = None;
    move |progress| {
        if !shows || progress.bytes.max(progress.total.unwrap_or(0)) <= MIN_BAR_SIZE {
            return;
        }
        let bar = shown.get_or_insert_with(|| {
            let bar = match progress.total {
                Some(total) => styled(ProgressBar::new(total), BAR),
                None => styled(ProgressBar::new_spinner(), BAR_WITHOUT_END),
            };
            bar.set_message(what.clone());
            bar
        });
        bar.set_position(progress.bytes);
    }
}

/// Makes a bar that goes when it is dropped.
fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let bar = bar.with_finish(ProgressFinish::AndClear);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ").tick_chars("-\\|/ ")),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_templates() {
        for template in [LINE, BAR, BAR_WITHOUT_END] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
