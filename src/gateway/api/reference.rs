//! The routes of the contract for people, made from the same document that `/openapi.json` serves.

use std::fmt::Write as _;
use std::sync::LazyLock;

use serde_json::Value;

use super::html::escape;

/// The contract as OpenAPI 3.1. Tests compare it with the routes, the problem codes, the words and real answers.
pub const OPENAPI: &str = include_str!("openapi.json");

const METHODS: [&str; 6] = ["get", "head", "post", "put", "patch", "delete"];

/// A section for each group of routes. Made once: the document does not change while the process lives.
pub(super) fn html() -> &'static str {
    static HTML: LazyLock<String> = LazyLock::new(|| serde_json::from_str(OPENAPI).map(|document| sections(&document)).unwrap_or_default());
    &HTML
}

fn sections(document: &Value) -> String {
    let mut html = String::new();
    for tag in document["tags"].as_array().into_iter().flatten().filter_map(|tag| tag["name"].as_str()) {
        // Writing to a String cannot fail.
        let _ = writeln!(html, "<h3>{}</h3>", escape(tag));
        for (path, method, operation) in operations(document) {
            if operation["tags"][0] == *tag {
                route(&mut html, document, path, method, operation);
            }
        }
    }
    html
}

/// Path, method and description of every route.
pub(super) fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let paths = document["paths"].as_object().into_iter().flatten();
    paths.flat_map(|(path, item)| METHODS.iter().filter_map(move |method| Some((path.as_str(), *method, item.get(method)?))))
}

fn route(html: &mut String, document: &Value, path: &str, method: &str, operation: &Value) {
    let text = |name: &str| operation[name].as_str().map(escape).unwrap_or_default();
    let scopes: Vec<&str> = operation["security"][0]["key"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let scopes = if scopes.is_empty() { String::new() } else { format!(" <span class=\"quiet\">scope {}</span>", scopes.join(", ")) };
    let _ = writeln!(html, "<h4 id=\"{}\"><code>{} {}</code>{scopes}</h4>", text("operationId"), method.to_uppercase(), escape(path));
    let _ = writeln!(html, "<p>{}. {}</p>", text("summary"), text("description"));
    let parameters: Vec<(String, String)> = operation["parameters"].as_array().into_iter().flatten().map(parameter).collect();
    table(html, &parameters);
    for schema in schemas(operation) {
        table(html, &fields(document, schema));
    }
}

fn parameter(parameter: &Value) -> (String, String) {
    let text = |name: &str| parameter[name].as_str().map(escape).unwrap_or_default();
    (format!("{} <span class=\"quiet\">in {}</span>", text("name"), text("in")), text("description"))
}

/// What is sent, and what comes back when all goes well.
fn schemas(operation: &Value) -> impl Iterator<Item = &Value> {
    let answers = operation["responses"].as_object().into_iter().flatten();
    let good = answers.filter(|(status, _)| status.starts_with('2')).map(|(_, answer)| answer);
    [&operation["requestBody"]]
        .into_iter()
        .chain(good)
        .map(|body| &body["content"]["application/json"]["schema"])
        .filter(|schema| !schema.is_null())
}

fn fields(document: &Value, schema: &Value) -> Vec<(String, String)> {
    let schema = resolved(document, schema);
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties
        .map(|(name, own)| {
            let own = resolved(document, own);
            (escape(name), own["description"].as_str().map(escape).unwrap_or_default())
        })
        .collect()
}

/// What a reference refers to.
pub(super) fn resolved<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    let name = schema["$ref"].as_str().and_then(|target| target.strip_prefix("#/components/schemas/"));
    name.map_or(schema, |name| &document["components"]["schemas"][name])
}

fn table(html: &mut String, rows: &[(String, String)]) {
    if rows.is_empty() {
        return;
    }
    html.push_str("<table>\n");
    for (name, meaning) in rows {
        let _ = writeln!(html, "<tr><td><code>{name}</code></td><td>{meaning}</td></tr>");
    }
    html.push_str("</table>\n");
}
