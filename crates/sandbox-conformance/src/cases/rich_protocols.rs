//! The ways in which objects of libraries show themselves, and what `display()` can be told.

use sandbox_core::ResultItem;
use serde_json::json;

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, describe, ok};

pub(super) fn cases() -> Vec<Case> {
    cases!("rich", [run_code, rich_results], {
        an_object_shows_itself;
        representations_are_chosen;
        a_display_under_a_known_id_updates_the_earlier;
        a_place_is_filled_later;
        json_takes_what_programs_have;
    })
}

fn texts(items: &[ResultItem]) -> Vec<&str> {
    items.iter().map(|item| item.text().unwrap_or("no text")).collect()
}

async fn an_object_shows_itself(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
class Own:
    def __repr__(self): return 'never'
    def _ipython_display_(self): display({'text/plain': 'by itself'}, raw=True)
display(Own())
Own()";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(texts(&result.results), ["by itself", "by itself"], "{}", describe(&result));
    Ok(())
}

async fn representations_are_chosen(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
class Both:
    def __repr__(self): return 'plain'
    def _repr_html_(self): return '<b>'
    def _repr_markdown_(self): return '**'
display(Both(), include=['text/html'])
display(Both(), exclude=['text/html'])";
    let result = ok(&sandbox, code).await?;
    let types: Vec<Vec<&str>> =
        result.results.iter().map(|item| item.data.keys().map(String::as_str).collect()).collect();
    ensure_eq!(types, [vec!["text/html"], vec!["text/markdown", "text/plain"]]);
    Ok(())
}

async fn a_display_under_a_known_id_updates_the_earlier(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
display('old', display_id='x')
display('other')
display('new', display_id='x');";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(texts(&result.results), [as_shown("'new'"), as_shown("'other'"), as_shown("'new'")]);
    Ok(())
}

async fn a_place_is_filled_later(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "place = display(display_id=True)\ndisplay('second')\nplace.update('first')";
    ensure_eq!(
        texts(&ok(&sandbox, code).await?.results),
        [as_shown("'first'"), as_shown("'second'")]
    );
    Ok(())
}

async fn json_takes_what_programs_have(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import datetime
document = {
    'day': datetime.date(2020, 1, 2),
    'time': datetime.datetime(2020, 1, 2, 3, 4, tzinfo=datetime.timezone.utc),
    'set': {1},
    'bytes': b'ab',
    'rows': (row for row in [1, 2]),
    5: 'number',
}
display({'application/json': document, 'text/plain': 'text'}, raw=True)";
    let result = ok(&sandbox, code).await?;
    let expected = json!({
        "day": "2020-01-02", "time": "2020-01-02T03:04:00Z", "set": [1],
        "bytes": "YWI=", "rows": [1, 2], "5": "number",
    });
    ensure!(result.results.len() == 1, "{}", describe(&result));
    ensure_eq!(result.results[0].json(), Some(&expected), "{}", describe(&result));
    let code = "display({'application/json': [float('nan'), float('-inf'), 1.5]}, raw=True)";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(result.results[0].json(), Some(&json!(["nan", "-inf", 1.5])));
    Ok(())
}
