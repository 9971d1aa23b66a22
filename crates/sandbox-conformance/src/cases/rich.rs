//! Displayed objects and their representations.

use std::time::Duration;

use futures_util::StreamExt as _;
use sandbox_core::{EventKind, OutputStream, ResultItem, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, as_shown, describe, is_usable, ok, raises, run, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("rich", [run_code, rich_results], {
        every_representation_of_an_object;
        a_bundle_of_representations;
        display_comes_in_order;
        display_and_result_are_told_apart;
        displays_are_heard_as_they_come;
        text_keeps_its_place_among_displays;
        text_keeps_its_place_with_a_slow_reader;
        a_display_is_updated;
        output_is_cleared;
        output_is_cleared_when_the_next_comes;
        a_representation_that_raises_is_left_out;
        a_repr_that_raises_is_an_error;
        a_huge_repr_is_cut;
        a_huge_representation_is_left_out;
        a_number_that_has_no_text_is_left_out;
        a_flood_of_displays_is_bounded;
        a_flood_of_small_values_is_bounded needs local;
        a_script_may_end_with_much_to_show needs run_script;
        display_names_are_not_in_the_way;
        a_class_is_not_its_instance;
    })
}

/// Which take a hundred times their text as soon as they are parsed.
async fn a_flood_of_small_values_is_bounded(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let before = crate::host::resident_memory()?;
    let code = "
class Many:
    def _repr_mimebundle_(self, **others):
        return {'application/json': [{'': 0}] * 85_000, 'text/plain': 'many'}
for _ in range(16): display(Many())";
    let result = sandbox.run_code(code).timeout(WAIT_TIMEOUT).await?;
    ensure!(result.success(), "{}", describe(&result));
    ensure_eq!(result.results.len() as u64 + result.results_dropped, 16);
    let grown = crate::host::resident_memory()?.saturating_sub(before);
    ensure!(grown < 400 << 20, "what was displayed took {} MiB", grown >> 20);
    Ok(())
}

/// The smallest PNG there is.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

async fn every_representation_of_an_object(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = format!(
        "
import base64
class All:
    def __repr__(self): return 'plain'
    def _repr_html_(self): return '<b>html</b>'
    def _repr_markdown_(self): return '*md*'
    def _repr_latex_(self): return '$x$'
    def _repr_svg_(self): return '<svg/>'
    def _repr_json_(self): return {{'k': [1, None]}}
    def _repr_javascript_(self): return 'alert(1)'
    def _repr_png_(self): return base64.b64decode('{PNG}')
    def _repr_jpeg_(self): return b'\\xff\\xd8jpeg'
    def _repr_pdf_(self): return b'%PDF-'
All()"
    );
    let result = ok(&sandbox, &code).await?;
    ensure_eq!(result.results.len(), 1, "results");
    let item = &result.results[0];
    ensure_eq!(item.text(), Some("plain"));
    ensure_eq!(item.html(), Some("<b>html</b>"));
    ensure_eq!(item.markdown(), Some("*md*"));
    ensure_eq!(item.latex(), Some("$x$"));
    ensure_eq!(item.svg(), Some("<svg/>"));
    ensure_eq!(item.json(), Some(&serde_json::json!({"k": [1, null]})));
    ensure_eq!(item.data.get("application/javascript"), Some(&"alert(1)".into()));
    ensure_eq!(item.png().map(|png| png.replace('\n', "")).as_deref(), Some(PNG));
    ensure_eq!(item.jpeg().map(str::trim), Some("/9hqcGVn"));
    ensure_eq!(item.pdf().map(str::trim), Some("JVBERi0="));
    Ok(())
}

async fn a_bundle_of_representations(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
class B:
    def __repr__(self): return 'plain'
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/html': '<i>b</i>', 'application/vnd.custom+json': {'a': 1}}
B()";
    let result = ok(&sandbox, code).await?;
    let item = &result.results[0];
    ensure_eq!(item.html(), Some("<i>b</i>"));
    ensure_eq!(item.data.get("application/vnd.custom+json"), Some(&serde_json::json!({"a": 1})));
    Ok(())
}

const SHOWN: &str = "
class H:
    def __init__(self, text): self.text = text
    def __repr__(self): return 'H ' + self.text
    def _repr_html_(self): return '<p>' + self.text + '</p>'
";

fn html(items: &[ResultItem]) -> Vec<&str> {
    items.iter().map(|item| item.html().unwrap_or("no html")).collect()
}

async fn display_comes_in_order(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result =
        ok(&sandbox, &format!("{SHOWN}\nfor t in 'abc': display(H(t))\ndisplay(H('d'), H('e'))"))
            .await?;
    ensure_eq!(html(&result.results), ["<p>a</p>", "<p>b</p>", "<p>c</p>", "<p>d</p>", "<p>e</p>"]);
    ensure!(result.results.iter().all(|item| !item.is_main_result), "a display is not the result");
    Ok(())
}

async fn display_and_result_are_told_apart(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = ok(&sandbox, &format!("{SHOWN}\ndisplay(H('shown'))\nH('value')")).await?;
    ensure_eq!(html(&result.results), ["<p>shown</p>", "<p>value</p>"]);
    ensure_eq!(result.results.iter().map(|i| i.is_main_result).collect::<Vec<_>>(), [false, true]);
    ensure_eq!(result.text(), Some("H value"));
    Ok(())
}

async fn displays_are_heard_as_they_come(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut heard = Vec::new();
    let code = format!("{SHOWN}\ndisplay(H('a'))\nH('b')");
    sandbox.run_code(code).on_result(|item| heard.push(item.html().map(str::to_owned))).await?;
    ensure_eq!(heard, [Some("<p>a</p>".to_owned()), Some("<p>b</p>".to_owned())]);
    Ok(())
}

/// What one run tells: the text of both streams up to each display, and what came there instead of text.
async fn told(sandbox: &Sandbox, code: &str, pause: Duration) -> Checked<Vec<[String; 3]>> {
    let mut events = sandbox.run_code(code).timeout(WAIT_TIMEOUT).stream().await?;
    let mut told = vec![<[String; 3]>::default()];
    while let Some(event) = events.next().await {
        let Some(last) = told.last_mut() else { break };
        last[2] = match event.kind {
            EventKind::Output { stream, data } => {
                let text = &mut last[usize::from(stream == OutputStream::Stderr)];
                text.push_str(&String::from_utf8_lossy(&data));
                continue;
            }
            EventKind::Display { display, item, .. } => {
                format!("{display:?} {}", item.text().unwrap_or_default())
            }
            EventKind::ClearOutput { wait } => format!("Clear {wait}"),
            _ => continue,
        };
        told.push(Default::default());
        tokio::time::sleep(pause).await;
    }
    Ok(told)
}

async fn text_keeps_its_place_among_displays(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import sys
for i in range(200):
    print('out', i, end=('\\n', '')[i % 2])
    print('err', i, file=sys.stderr)
    (lambda: display(i), lambda: clear_output(), lambda: update_display(i, display_id='x'))[i % 3]()
print('end')";
    let told = told(&sandbox, code, Duration::ZERO).await?;
    ensure_eq!(told.len(), 201, "displays and what comes after them");
    for (i, found) in told[..200].iter().enumerate() {
        let shown = match i % 3 {
            0 => format!("Display {i}"),
            1 => "Clear false".to_owned(),
            _ => format!("Update {i}"),
        };
        let end = if i % 2 == 0 { "\n" } else { "" };
        ensure_eq!(found, &[format!("out {i}{end}"), format!("err {i}\n"), shown], "place {i}");
    }
    ensure_eq!(told[200][0], "end\n");
    Ok(())
}

async fn text_keeps_its_place_with_a_slow_reader(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
for i in range(20):
    display(i)
    for _ in range(1000): print(f'{i:099}')";
    let told = told(&sandbox, code, Duration::from_millis(20)).await?;
    ensure_eq!(told.len(), 21, "displays and what comes after them");
    for (i, [text, _, _]) in told[1..].iter().enumerate() {
        ensure!(*text == format!("{i:099}\n").repeat(1000), "{} bytes after {i}", text.len());
    }
    Ok(())
}

async fn a_display_is_updated(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = format!(
        "{SHOWN}\ndisplay(H('old'), display_id='x')\ndisplay(H('other'))\nupdate_display(H('new'), display_id='x')"
    );
    ensure_eq!(html(&ok(&sandbox, &code).await?.results), ["<p>new</p>", "<p>other</p>"]);
    Ok(())
}

async fn output_is_cleared(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = format!(
        "{SHOWN}\nprint('old')\ndisplay(H('old'))\nclear_output()\nprint('new')\ndisplay(H('new'))"
    );
    let result = ok(&sandbox, &code).await?;
    ensure_eq!(html(&result.results), ["<p>new</p>"]);
    Ok(())
}

async fn output_is_cleared_when_the_next_comes(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = format!(
        "{SHOWN}\ndisplay(H('first'))\nclear_output(wait=True)\ndisplay(H('second'))\nclear_output(wait=True)"
    );
    ensure_eq!(html(&ok(&sandbox, &code).await?.results), ["<p>second</p>"]);
    Ok(())
}

async fn a_representation_that_raises_is_left_out(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
class Half:
    def __repr__(self): return 'fine'
    def _repr_html_(self): 1/0
    def _repr_markdown_(self): return '*fine*'
    def _repr_png_(self): return None
Half()";
    let result = run(&sandbox, code).await?;
    ensure!(result.success(), "{}", describe(&result));
    let item = &result.results[0];
    ensure_eq!((item.text(), item.markdown(), item.html()), (Some("fine"), Some("*fine*"), None));
    ensure!(!item.data.contains_key("image/png"), "a representation of None was shown");
    Ok(())
}

/// Python itself refuses to write down numbers of more than 4300 digits.
async fn a_number_that_has_no_text_is_left_out(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
class Large:
    def _repr_json_(self): return {'n': 10 ** 5000}
    def __repr__(self): return 'large'
display(Large())
Large()";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(result.text(), Some("large"), "{}", describe(&result));
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_repr_that_raises_is_an_error(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "x = 1\nclass R:\n    def __repr__(self): raise ValueError('no repr')\nR()";
    raises(&sandbox, code, "ValueError").await?;
    ensure_eq!(text(&sandbox, "x").await?, "1");
    Ok(())
}

async fn a_huge_repr_is_cut(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = ok(&sandbox, "'x' * (50 << 20)").await?;
    let length = result.text().unwrap_or_default().len();
    ensure!((1000..4 << 20).contains(&length), "a text of {length} bytes");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_huge_representation_is_left_out(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "class H:\n    def __repr__(self): return 'small'\n    def _repr_html_(self): return 'a' * (200 << 20)\nH()";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(result.text(), Some("small"));
    ensure!(result.results[0].html().is_none(), "200 MiB of HTML were kept");
    ensure!(!result.stderr_trimmed().is_empty(), "nothing says that something was left out");
    is_usable(&sandbox).await?;
    Ok(())
}

/// An object that takes a mebibyte to show.
const PAGE: &str = "
class Page:
    def __repr__(self): return 'a page'
    def _repr_html_(self): return 'x' * (1 << 20)
";

async fn a_flood_of_displays_is_bounded(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = format!("{PAGE}for _ in range(200): display(Page())\n'end'");
    let result = ok(&sandbox, &code).await?;
    let kept: usize = result.results.iter().map(|item| item.html().map_or(0, str::len)).sum();
    ensure!(kept < 128 << 20, "{} MiB of displays were kept", kept >> 20);
    ensure!(result.text() == Some(as_shown("'end'")), "{}", describe(&result));
    Ok(())
}

/// What is on its way when a script ends arrives.
async fn a_script_may_end_with_much_to_show(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = format!("{PAGE}for _ in range(40): display(Page())\nprint('end')");
    let result = sandbox.run_code(code).script("s.py", [""; 0]).timeout(WAIT_TIMEOUT).await?;
    ensure!(result.success(), "{}", describe(&result));
    ensure_eq!(result.results.len(), 40);
    ensure_eq!(result.stdout_trimmed(), "end");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn display_names_are_not_in_the_way(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "display = 5\nclear_output = None").await?;
    ensure_eq!(text(&sandbox, "display").await?, "5");
    ensure_eq!(text(&sandbox, "6 * 7").await?, "42");
    Ok(())
}

async fn a_class_is_not_its_instance(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = ok(&sandbox, &format!("{SHOWN}\nH")).await?;
    ensure!(result.results[0].html().is_none(), "a class was shown by the method of its instances");
    ensure!(result.text().is_some_and(|text| text.contains("class")), "{}", describe(&result));
    Ok(())
}
