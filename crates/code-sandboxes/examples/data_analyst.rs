//! A data analyst: a file goes in, questions are asked of one interpreter, a report comes out.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use code_sandboxes::{ByteSize, Result, Sandbox};

const SALES: &str = "month,region,sales\n1,north,120\n1,south,80\n2,north,150\n2,south,95\n";

const LOAD: &str = "
import csv
with open('sales.csv') as file:
    rows = [dict(row, sales=int(row['sales'])) for row in csv.DictReader(file)]
len(rows)
";

/// Questions as code that a model has written. The second one is wrong, and is asked again.
const QUESTIONS: [&str; 3] = [
    "max(rows, key=lambda row: row['sales'])['region']",
    "sum(row['sale'] for row in rows)",
    "sum(row['sales'] for row in rows)",
];

const REPORT: &str = "
import json
totals = {}
for row in rows: totals[row['region']] = totals.get(row['region'], 0) + row['sales']
with open('report.json', 'w') as file: json.dump(totals, file)
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let builder = Sandbox::builder().timeout(Duration::from_secs(10)).disk(ByteSize::mib(64));
    let report = builder
        .scope(async |sandbox| {
            sandbox.files().write("sales.csv", SALES).await?;
            println!("rows: {}", sandbox.run_code(LOAD).await?.text().unwrap_or("none"));
            for question in QUESTIONS {
                let result = sandbox.run_code(question).memory(ByteSize::mib(128)).await?;
                match (result.text(), &result.code_error) {
                    (Some(answer), _) => println!("{question}: {answer}"),
                    (None, Some(error)) => println!("{question}: tell the model: {error}"),
                    (None, None) => println!("{question}: {:?}", result.failure),
                }
            }
            sandbox.run_code(REPORT).await?;
            sandbox.files().read("report.json").await
        })
        .await?;
    assert_eq!(report, r#"{"north": 270, "south": 175}"#);
    println!("report: {}", String::from_utf8_lossy(&report));
    Ok(())
}
