//! The packages people plot and compute with. They need `SANDBOX_TEST_PYTHON`.

use std::io::Write as _;

use crate::{
    Case,
    harness::{Outcome, Worker, Zygote, cell, plain_fork, script},
};
use sandbox_cells::Start;
use sandbox_engine::WireDisplayKind;

pub(crate) const CASES: &[Case] = &[
    ("pandas_frames", pandas_frames),
    ("pillow_images", pillow_images),
    ("figures", figures),
    ("charts", charts),
    ("a_backend_of_the_user_stays", a_backend_of_the_user_stays),
    ("preimported", preimported),
    ("figures_of_plotly", figures_of_plotly),
];

fn mimes(outcome: &Outcome) -> Vec<(WireDisplayKind, Vec<String>)> {
    assert_eq!(outcome.error(), None);
    outcome
        .displays()
        .map(|(kind, bundle)| (kind, bundle.iter().map(|item| item.mime.clone()).collect()))
        .collect()
}

fn expect(outcome: &Outcome, displays: &[(WireDisplayKind, &[&str])]) {
    let expected: Vec<(WireDisplayKind, Vec<String>)> = displays
        .iter()
        .map(|(kind, mimes)| (*kind, mimes.iter().map(|&mime| mime.to_owned()).collect()))
        .collect();
    assert_eq!(mimes(outcome), expected, "{}", outcome.stderr());
    assert_eq!(outcome.stderr(), "");
}

fn pandas_frames() {
    let mut worker = Worker::new();
    let outcome = worker.run("import pandas as pd\npd.DataFrame({'a': [1, 2]})");
    expect(&outcome, &[(WireDisplayKind::Result, TABLE)]);
    assert!(outcome.displays().next().expect("display").1[1].data.contains("<table"));
    let data = |worker: &mut Worker, code: &str| {
        let outcome = worker.run(code);
        expect(&outcome, &[(WireDisplayKind::Result, TABLE)]);
        outcome.displays().next().expect("display").1[2].data.clone()
    };
    let kinds =
        "pd.DataFrame({'n': [1, None], 't': [pd.Timestamp('2024-01-02'), None], 3: ['x', 1j]})";
    assert_eq!(
        data(&mut worker, kinds),
        r#"{"n":[1.0,null],"t":["2024-01-02T00:00:00",null],"3":["x","1j"]}"#
    );
    let large = worker.run("pd.DataFrame({'a': range(60000)})");
    expect(&large, &[(WireDisplayKind::Result, &["text/plain", "text/html"])]);
    assert_eq!(worker.run("import numpy as np\nnp.arange(3)").text(), Some("array([0, 1, 2])"));
}

fn pillow_images() {
    let mut worker = Worker::new();
    let outcome = worker.run("from PIL import Image\nImage.new('RGB', (4, 4), 'red')");
    let all = mimes(&outcome);
    assert!(all[0].1.contains(&"image/png".to_owned()), "{all:?}");
}

/// A table has its data, too.
const TABLE: &[&str] = &["text/plain", "text/html", "application/vnd.code-sandboxes.data+json"];
const IMAGE: &[&str] = &["text/plain", "image/png"];
/// A figure with data has that data, too.
const CHART: &[&str] = &["text/plain", "image/png", "application/vnd.code-sandboxes.chart+json"];

fn figures() {
    let mut worker = Worker::new();
    let plot = worker.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.title('t');");
    expect(&plot, &[(WireDisplayKind::Display, CHART)]);
    assert!(plot.displays().next().expect("display").1[1].data.starts_with("iVBOR"));
    expect(&worker.run("1"), &[(WireDisplayKind::Result, &["text/plain"])]);
    expect(
        &worker.run("fig, ax = plt.subplots(); ax.plot([1])\nfig"),
        &[(WireDisplayKind::Result, CHART)],
    );
    expect(
        &worker.run("plt.figure(); plt.figure();"),
        &[(WireDisplayKind::Display, IMAGE), (WireDisplayKind::Display, IMAGE)],
    );
    expect(&worker.run("display(fig)"), &[(WireDisplayKind::Display, CHART)]);
    // `show` shows at once.
    worker.start(&cell("plt.plot([3]); plt.show(); import time; time.sleep(30)"), None);
    assert!(matches!(worker.reply(), Some(sandbox_engine::Reply::Display { .. })));
    worker.reap();
    let mut other = Worker::new();
    let failing = other.run("import matplotlib.pyplot as plt\nplt.plot([1])\n1/0");
    assert_eq!((failing.displays().count(), failing.error().is_some()), (1, true));
    let broken = other.run("plt.title('$\\\\frac$');");
    assert!(broken.stderr().contains("failed"), "{}", broken.stderr());
    assert_eq!(other.run("1").text(), Some("1"));
}

/// The kinds of charts, by the code that draws one and what its data has to contain.
const CHARTS: [(&str, &[&str]); 9] = [
    (
        "plt.plot([1, 2], [3, 4], label='a'); plt.axhline(3); plt.xlabel('Time (s)')",
        &[
            "\"type\":\"line\"",
            "\"x_unit\":\"s\"",
            "[{\"label\":\"a\",\"points\":[[1.0,3.0],[2.0,4.0]]}]",
        ],
    ),
    ("plt.scatter([1], [2])", &["\"type\":\"scatter\"", "\"points\":[[1.0,2.0]]"]),
    (
        "plt.bar(['u', 'v'], [3, 4], label='g')",
        &["\"type\":\"bar\"", "{\"label\":\"v\",\"group\":\"g\",\"value\":4.0}"],
    ),
    (
        "plt.barh(['u'], [3]); plt.xlabel('x')",
        &["\"y_label\":\"x\"", "{\"label\":\"u\",\"group\":\"Group 0\",\"value\":3.0}"],
    ),
    (
        "plt.pie([1, 3], labels=['q', 'r'])",
        &["\"type\":\"pie\"", "{\"label\":\"r\",\"angle\":270.0,\"radius\":1.0}"],
    ),
    (
        "plt.boxplot([[1, 2, 3, 4, 5, 20]])",
        &[
            "\"type\":\"box_and_whisker\"",
            "\"min\":1.0,\"first_quartile\":2.25,\"median\":3.5,\"third_quartile\":4.75,\"max\":5.0,\"outliers\":[20.0]",
        ],
    ),
    (
        "_, a = plt.subplots(1, 2); a[0].plot([1]); a[1].bar(['u'], [1]); plt.suptitle('s')",
        &["{\"type\":\"superchart\",\"title\":\"s\"", "\"type\":\"line\"", "\"type\":\"bar\""],
    ),
    (
        "import datetime; plt.plot([datetime.date(2024, 1, 2)], [1])",
        &["\"x_scale\":\"datetime\"", "[[\"2024-01-02\",1.0]]"],
    ),
    ("plt.imshow([[1, 2]])", &["{\"type\":\"unknown\",\"title\":null,\"elements\":[]}"]),
];

fn charts() {
    let mut worker = Worker::new();
    worker.run("import matplotlib.pyplot as plt");
    for (code, parts) in CHARTS {
        let outcome = worker.run(&format!("{code};"));
        expect(&outcome, &[(WireDisplayKind::Display, CHART)]);
        let data = outcome.displays().next().expect("display").1[2].data.clone();
        for part in parts {
            assert!(data.contains(part), "{code}: no {part} in {data}");
        }
    }
    let large = worker.run("plt.plot(range(60000));");
    expect(&large, &[(WireDisplayKind::Display, IMAGE)]);
}

fn a_backend_of_the_user_stays() {
    let mut fork = plain_fork();
    fork.env.push(("MPLBACKEND".into(), "svg".into()));
    let mut worker = Worker::fork(&crate::harness::WARM, &fork).expect("worker");
    assert_eq!(
        worker.run("import matplotlib.pyplot as plt\nplt.plot([1]); plt.get_backend()").text(),
        Some("'svg'")
    );
    assert_eq!(Worker::new().run("import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot([1]);").displays().count(), 0);
    // Children have no module of ours, so nothing tells them to use it.
    let child = Worker::new().run("import matplotlib, subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import matplotlib.pyplot as p; p.plot([1])'], check=True);");
    assert_eq!(child.error(), None, "{}", child.stderr());
}

/// Shown as in a notebook, where neither IPython nor a browser is.
fn figures_of_plotly() {
    let mut worker = Worker::new();
    let found = worker.run("import importlib.util\nimportlib.util.find_spec('plotly') is not None");
    if found.text() != Some("True") {
        // `cargo xtask test` counts such lines.
        let _ = write!(std::io::stdout(), "\nskipped: SANDBOX_TEST_PYTHON has no plotly\n");
        return;
    }
    const FIGURE: &[&str] = &["application/vnd.plotly.v1+json"];
    let show = worker.run(
        "import plotly.graph_objects as go\nfigure = go.Figure(data=[go.Scatter(y=[1, 2])])\nfigure.show()",
    );
    expect(&show, &[(WireDisplayKind::Display, FIGURE)]);
    assert!(show.displays().next().expect("display").1[0].data.contains("\"y\":[1,2]"));
    expect(&worker.run("figure"), &[(WireDisplayKind::Display, FIGURE)]);
    let page = worker.run("figure.show('notebook_connected')");
    assert!(mimes(&page).iter().all(|(_, types)| *types == ["text/html"]), "{page:?}");
    let shown = "import plotly.io as io\nio.show({'data': [{'y': [3]}]})";
    expect(&worker.run_with(&script(shown)), &[(WireDisplayKind::Display, FIGURE)]);
}

fn preimported() {
    let names = ["numpy", "pandas", "matplotlib.pyplot"].map(str::to_owned).to_vec();
    let zygote = Zygote::start(&Start { preimports: names, warm: true, ..Start::default() })
        .expect("zygote");
    let mut worker = Worker::fork(&zygote, &plain_fork()).expect("worker");
    let figure = worker.run("import matplotlib.pyplot as plt\nplt.plot([1]);");
    expect(&figure, &[(WireDisplayKind::Display, CHART)]);
    let draw = || {
        Worker::fork(&zygote, &plain_fork())
            .expect("worker")
            .run("import numpy; numpy.random.rand()")
            .text()
            .map(str::to_owned)
    };
    assert_ne!(draw(), draw());
    let mut fork = plain_fork();
    fork.env.push(("MPLBACKEND".into(), "svg".into()));
    let mut worker = Worker::fork(&zygote, &fork).expect("worker");
    assert_eq!(
        worker.run("import matplotlib.pyplot as plt\nplt.plot([1]); plt.get_backend()").text(),
        Some("'svg'")
    );
}
