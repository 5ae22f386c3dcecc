//! The description of all paths: what it says is so.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::{Value, json};

use crate::{
    client::{get, post},
    harness::start,
};

fn described(at: std::net::SocketAddr) -> Value {
    let response = get(at, "/openapi.json");
    assert!(response.head.contains("content-type: application/json"), "{}", response.head);
    response.json()
}

/// Paths that take a body, with the name of its schema and its examples.
fn bodies(described: &Value) -> Vec<(String, String, Vec<Value>)> {
    let posts = described["paths"].as_object().unwrap().iter();
    let posts = posts.filter_map(|(path, methods)| {
        let body = methods.get("post")?["requestBody"]["content"]["application/json"].clone();
        let name = body["schema"]["$ref"].as_str()?.rsplit('/').next()?.to_owned();
        let examples = body["examples"].as_object()?.values();
        Some((path.clone(), name, examples.map(|example| example["value"].clone()).collect()))
    });
    posts.collect()
}

#[test]
fn every_example_is_accepted_and_every_path_answers() {
    let server = start(1);
    let described = described(server.at);
    let mut tried = 0;
    for (path, _, examples) in bodies(&described) {
        for example in examples {
            let response = post(server.at, &path, &example);
            assert_eq!(response.status, 200, "{path} {example}: {}", response.body);
            tried += 1;
        }
    }
    assert!(tried > 12, "{tried}");
    for (path, methods) in described["paths"].as_object().unwrap() {
        // What `/feed` says never ends.
        let Some(method) = methods.get("get").filter(|_| path != "/feed") else { continue };
        let parameters = method["parameters"].as_array().into_iter().flatten();
        let path = parameters.fold(path.clone(), |path, parameter| {
            let name = format!("{{{}}}", parameter["name"].as_str().unwrap());
            path.replace(&name, parameter["example"].as_str().unwrap())
        });
        assert_eq!(get(server.at, &path).status, 200, "{path}");
    }
}

fn takes_null(schema: &Value) -> bool {
    let [kinds, values, all] = ["type", "enum", "oneOf"].map(|name| &schema[name]);
    let has =
        |list: &Value, value: Value| list.as_array().is_some_and(|list| list.contains(&value));
    let open =
        [kinds, values, all, &schema["const"], &schema["$ref"]].iter().all(|part| part.is_null());
    let kind = kinds == "null" || has(kinds, json!("null"));
    let value = values.is_null() || has(values, Value::Null);
    open || kind && value
        || kinds.is_null() && has(values, Value::Null)
        || has(all, json!({"type": "null"}))
}

/// Every word between quotes in the server's own files: among them are the names of all fields that it takes.
fn words() -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let mut dirs = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(dir) = dirs.pop() {
        for file in fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()) {
            if file.is_dir() {
                dirs.push(file);
            } else if file.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(file).unwrap();
                let text = text.split("#[cfg(test)]").next().unwrap();
                let is_name = |word: &&str| {
                    !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
                };
                words.extend(text.split('"').filter(is_name).map(str::to_owned));
            }
        }
    }
    words
}

#[test]
fn no_field_is_taken_that_is_not_described() {
    let server = start(1);
    let (described, words) = (described(server.at), words());
    assert!(words.len() > 300 && words.contains("access_programs"), "{}", words.len());
    for (path, schema, examples) in bodies(&described) {
        let properties = described["components"]["schemas"][&schema]["properties"].clone();
        for word in words.iter().filter(|word| properties.get(word.as_str()).is_none()) {
            let mut body = examples[0].clone();
            body[word] = json!([[[]]]);
            let said = post(server.at, &path, &body).body;
            assert!(said.contains("does not know this field"), "{path}: {word}: {said}");
        }
    }
}

#[test]
fn every_field_is_known_and_every_bound_is_kept() {
    let server = start(1);
    let described = described(server.at);
    let (mut fields, mut bounds) = (0, 0);
    for (path, schema, examples) in bodies(&described) {
        let schema = &described["components"]["schemas"][&schema];
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let refused_with = |more: &Value| {
            let mut body = examples[0].clone();
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let response = post(server.at, &path, &body);
            (response.status == 400)
                .then(|| response.json()["error"]["message"].as_str().unwrap().to_owned())
        };
        let refused = |field: &str, value: Value| refused_with(&json!({field: value}));
        for (field, own) in schema["properties"].as_object().unwrap() {
            // Whatever it is, it is not unknown.
            let said = refused(field, json!([[[]]])).unwrap_or_default();
            assert!(!said.contains("does not know this field"), "{path}: {said}");
            fields += 1;
            let optional = !required.contains(&json!(field));
            assert_eq!(takes_null(own), optional, "{path}: {field} may be left out, as null is");
            // What is refused is the field behind it.
            let fits = |value: Value| {
                let body = json!({field: value, "no_such_field": 1});
                refused_with(&body).unwrap_or_default().starts_with("no_such_field")
            };
            // Of two that stand for each other, one has to be there.
            let one_of = schema["anyOf"].to_string().contains(&format!("\"{field}\""));
            assert!(!optional || one_of || fits(Value::Null), "{path}: {field}");
            for bound in ["minimum", "maximum"] {
                let number = &own[bound];
                let alone = !["thinking_min", "top_logprobs"].contains(&field.as_str());
                assert!(
                    number.is_null() || !alone || fits(number.clone()),
                    "{path}: {field} {bound}"
                );
            }
            if let Some(least) = own["minimum"].as_f64() {
                let said = refused(field, json!(least - 1.0)).unwrap_or_default();
                assert!(said.starts_with(field), "{path} {field}: {said}");
            }
            let Some(most) = own["maximum"].as_f64() else { continue };
            let said = refused(field, json!(most + 1.0)).unwrap_or_default();
            assert!(said.starts_with(field) && said.contains("between"), "{path} {field}: {said}");
            bounds += 1;
        }
        let said = refused("no_such_field", json!(1)).unwrap_or_default();
        assert_eq!(schema["additionalProperties"], false);
        assert!(said.contains("does not know this field"), "{path}: {said}");
        for field in schema["required"].as_array().into_iter().flatten() {
            let said = refused(field.as_str().unwrap(), Value::Null).unwrap_or_default();
            assert!(said.contains("required"), "{path} {field}: {said}");
        }
    }
    assert!(fields > 100 && bounds > 40, "{fields} {bounds}");
}

/// Whether a value is what a schema says, and has nothing that the schema does not mention.
fn check(root: &Value, schema: &Value, value: &Value, at: &str) {
    let pointer = schema["$ref"].as_str().map(|name| name.trim_start_matches('#'));
    let schema = pointer.map_or(schema, |pointer| root.pointer(pointer).unwrap());
    let is = |kind: &Value| match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{at}: {other}"),
    };
    let is = match (&schema["type"], &schema["enum"]) {
        (Value::Array(kinds), _) => kinds.iter().any(is),
        (Value::Null, Value::Array(values)) => values.contains(value),
        (kind, _) => is(kind),
    };
    assert!(is, "{at} is {value}, described as {schema}");
    if let (Some(described), Some(fields)) = (schema["properties"].as_object(), value.as_object()) {
        for (name, value) in fields {
            let own = described.get(name).unwrap_or_else(|| panic!("{at}.{name} is not described"));
            check(root, own, value, &format!("{at}.{name}"));
        }
        for name in described.keys() {
            assert!(fields.contains_key(name), "{at}.{name} is described and not there");
        }
    }
    for item in value.as_array().into_iter().flatten() {
        check(root, &schema["items"], item, &format!("{at}[]"));
    }
}

#[test]
fn every_answer_is_as_described() {
    let server = start(1);
    let described = described(server.at);
    let mut checked = 0;
    for (path, _, examples) in bodies(&described) {
        let answer = &described["paths"][&path]["post"]["responses"]["200"]["content"];
        let schema = &answer["application/json"]["schema"];
        for example in examples.iter().filter(|example| example["stream"] != json!(true)) {
            check(&described, schema, &post(server.at, &path, example).json(), &path);
            checked += 1;
        }
    }
    assert!(checked >= 10, "{checked}");
}

#[test]
fn everything_says_who_is_kept_out() {
    let server = start(1);
    let described = described(server.at);
    for (path, methods) in described["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let open = operation["security"].as_array().is_some_and(Vec::is_empty);
            let said = |status: &str| operation["responses"].get(status).is_some();
            assert!(said("403") && said("401") != open, "{method} {path}");
        }
    }
}
