//! Code mode: an agent that writes one cell which calls three tools, instead of three calls with the model in between.
//!
//! The tools work in this process, with its network and its secrets. The code that composes them is in a cell that has
//! neither.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use code_sandboxes::{Sandbox, Tool};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Deserialize)]
struct Query {
    text: String,
}

#[derive(Deserialize)]
struct Product {
    id: u32,
}

#[derive(Deserialize)]
struct Order {
    id: u32,
    quantity: u32,
}

#[derive(Serialize)]
struct Receipt {
    order: String,
    quantity: u32,
}

fn search() -> Tool {
    const CATALOG: [(u32, &str); 3] = [(1, "green tea"), (2, "black tea"), (3, "coffee")];
    let description = "Finds products by a part of their name. Answers a list of {id, name}.";
    Tool::new("search", description, |query: Query| async move {
        let found = CATALOG.iter().filter(|(_, name)| name.contains(&query.text));
        Ok(found.map(|(id, name)| json!({"id": id, "name": name})).collect::<Vec<_>>())
    })
    .with_parameters(json!({
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }))
}

fn price() -> Tool {
    Tool::new("price", "The price of a product in cents.", |product: Product| async move {
        // What a service would take.
        tokio::time::sleep(Duration::from_millis(50)).await;
        match product.id {
            1 => Ok(450),
            2 => Ok(320),
            id => Err(format!("no price for product {id}").into()),
        }
    })
    .with_parameters(json!({"type": "object", "properties": {"id": {"type": "integer"}}}))
}

fn order() -> Tool {
    Tool::new("order", "Orders a product. Answers a receipt.", |order: Order| async move {
        Ok(Receipt { order: format!("A-{}", order.id), quantity: order.quantity })
    })
}

/// What a model would have written, after it was shown the tools.
const WRITTEN: &str = r#"
import asyncio

found = await call_tool("search", {"text": "tea"})
prices = await asyncio.gather(*(call_tool("price", id=product["id"]) for product in found))
cheapest, cents = min(zip(found, prices), key=lambda pair: pair[1])
receipt = await call_tool("order", id=cheapest["id"], quantity=1000 // cents)
print(f"{receipt['quantity']} x {cheapest['name']} for {receipt['quantity'] * cents} cents")
receipt["order"]
"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    let sandbox = Sandbox::builder().create().await?;
    for tool in [search(), price(), order()] {
        sandbox.register_tool(tool).await?;
    }

    let listed =
        sandbox.run_code("for tool in list_tools(): print(tool['name'], '-', tool['description'])");
    print!("the model is shown:\n{}\n", listed.await?.stdout_trimmed());

    let result = sandbox.run_code(WRITTEN).await?;
    println!("\nits code printed: {}", result.stdout_trimmed());
    println!("and its result is {}", result.text().unwrap_or("none"));

    // What goes wrong in a tool is an exception in the code.
    let failed = sandbox.run_code("await call_tool('price', id=3)").await?;
    println!("an error: {}", failed.code_error.map(|error| error.value).unwrap_or_default());
    sandbox.terminate().await
}
