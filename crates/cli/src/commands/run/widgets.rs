//! The states of the widgets that a run has shown, for the notebook that is written of it.

use std::time::Duration;

use code_sandboxes::Sandbox;
use serde_json::Value;

use super::Extras;
use crate::notebook::WIDGET_STATES;
use crate::printer::Printer;

/// The time that the interpreter may take to tell them.
const STATES_TIMEOUT: Duration = Duration::from_secs(20);

/// Code that shows the states of all widgets, and leaves no name behind.
const CODE: &str = "(lambda widgets, shown: widgets and __import__('builtins').display(\
    {shown: widgets.Widget.get_manager_state(drop_defaults=True)}, raw=True))\
    (__import__('sys').modules.get('ipywidgets'), 'application/vnd.jupyter.widget-state+json')";

/// Asks the interpreter that has shown them.
pub(super) async fn states(sandbox: &Sandbox, extras: &Extras, printer: &Printer) -> Option<Value> {
    let run = extras.code(sandbox.run_code(CODE)).timeout(STATES_TIMEOUT);
    let result = run.await.ok();
    let mut items = result.iter().flat_map(|result| &result.results);
    let found = items.find_map(|item| item.data.get(WIDGET_STATES).cloned());
    if found.is_none() {
        printer.warning("the interpreter did not tell the states of the widgets: the notebook shows them without");
    }
    found
}
