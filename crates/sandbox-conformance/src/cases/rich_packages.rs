//! Results of the packages that results mostly come from.

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::ok;

pub(super) fn cases() -> Vec<Case> {
    cases!("rich", [run_code, rich_results, packages], {
        a_pandas_frame_is_text_and_html;
        a_figure_is_shown_at_the_end_and_closed;
        a_figure_is_shown_by_show;
        a_chosen_backend_is_respected;
        a_pillow_image_is_a_png;
        numpy_values_are_text;
        numbers_of_numpy_are_json;
        wide_tables_keep_their_columns;
        figures_wait_after_ioff;
    })
}

/// How every base64 PNG begins.
const PNG_START: &str = "iVBORw0KGgo";

async fn a_pandas_frame_is_text_and_html(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = ok(&sandbox, "import pandas\npandas.DataFrame({'col': [1, 2]})").await?;
    let item = &result.results[0];
    ensure!(item.html().is_some_and(|html| html.contains("<table")), "html {:?}", item.html());
    ensure!(item.text().is_some_and(|text| text.contains("col")), "text {:?}", item.text());
    Ok(())
}

async fn a_figure_is_shown_at_the_end_and_closed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.title('t');";
    let result = ok(&sandbox, code).await?;
    let images: Vec<_> = result.results.iter().filter_map(|item| item.png()).collect();
    ensure_eq!(images.len(), 1, "images");
    ensure!(images[0].starts_with(PNG_START), "not a PNG: {:.20}", images[0]);
    let next = ok(&sandbox, "len(plt.get_fignums())").await?;
    ensure_eq!(next.text(), Some("0"), "figures left open");
    ensure_eq!(next.results.len(), 1, "the figure was shown again");
    Ok(())
}

async fn a_figure_is_shown_by_show(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import matplotlib.pyplot as plt\nfor i in range(2):\n    plt.figure(); plt.plot([i]); plt.show()";
    let result = ok(&sandbox, code).await?;
    let images = result.results.iter().filter(|item| item.png().is_some()).count();
    ensure_eq!(images, 2, "images");
    ensure_eq!(result.stderr_trimmed(), "");
    Ok(())
}

async fn a_chosen_backend_is_respected(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig('f.png')\nopen('f.png', 'rb').read(4)";
    ensure_eq!(ok(&sandbox, code).await?.text(), Some("b'\\x89PNG'"));
    Ok(())
}

async fn a_pillow_image_is_a_png(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = ok(&sandbox, "from PIL import Image\nImage.new('RGB', (2, 2), 'red')").await?;
    let png = result.results[0].png().unwrap_or_default();
    ensure!(png.starts_with(PNG_START), "not a PNG: {png:.20}");
    Ok(())
}

async fn numbers_of_numpy_are_json(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import numpy
document = {'whole': numpy.int64(3), 'float': numpy.float32(1.5), 'array': numpy.arange(2)}
display({'application/json': document, 'text/plain': 'text'}, raw=True)";
    let expected = serde_json::json!({"whole": 3, "float": 1.5, "array": [0, 1]});
    ensure_eq!(ok(&sandbox, code).await?.results[0].json(), Some(&expected));
    Ok(())
}

async fn wide_tables_keep_their_columns(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code =
        "import pandas\npandas.DataFrame([range(18)], columns=[f'column{i}' for i in range(18)])";
    let result = ok(&sandbox, code).await?;
    let shown = result.text().unwrap_or_default();
    let missing: Vec<_> =
        (0..18).map(|i| format!("column{i}")).filter(|name| !shown.contains(name)).collect();
    ensure!(missing.is_empty(), "without {missing:?}: {shown}");
    Ok(())
}

async fn figures_wait_after_ioff(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let images = async |code: &str| -> Checked<usize> {
        let result = ok(&sandbox, code).await?;
        Ok(result.results.iter().filter(|item| item.png().is_some()).count())
    };
    ensure_eq!(images("import matplotlib.pyplot as plt\nplt.plot([1]);").await?, 1);
    ensure_eq!(images("plt.ioff();").await?, 0);
    ensure_eq!(images("figure = plt.figure(); plt.plot([1]);").await?, 0, "after ioff()");
    ensure_eq!(images("plt.plot([2]);").await?, 0, "in a later cell");
    ensure_eq!(images("plt.show()").await?, 1, "by show()");
    ensure_eq!(images("plt.ion(); plt.plot([1]);").await?, 1, "after ion()");
    Ok(())
}

async fn numpy_values_are_text(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure_eq!(
        ok(&sandbox, "import numpy\nnumpy.arange(3)").await?.text(),
        Some("array([0, 1, 2])")
    );
    Ok(())
}
