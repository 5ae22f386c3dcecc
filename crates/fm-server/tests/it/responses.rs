//! OpenAI's Responses API.

use fm_engine::{
    EngineError,
    generate::Event,
    schedule::{Job, Update},
};
use fm_text::Channel;
use serde_json::{Value, json};

use crate::{
    client::{Response, post},
    endings::{Script, scripted},
    harness::{start, steady},
};

const PATH: &str = "/v1/responses";

fn ask(more: &Value) -> Value {
    let mut body = json!({"model": "any", "input": "What is 7 plus 5?", "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn weather(input: &Value) -> Value {
    let tool = json!({
        "type": "function", "name": "get_weather", "strict": false,
        "description": "Get the current weather for a city.",
        "parameters": {
            "type": "object", "required": ["city"],
            "properties": {"city": {"type": "string", "description": "The name of the city."}},
        },
    });
    ask(&json!({"input": input, "tools": [tool]}))
}

/// Ids and times differ from run to run.
fn plain(response: &Value) -> Value {
    let mut plain = response.clone();
    for field in ["id", "created_at", "completed_at", "timings", "usage"] {
        plain.as_object_mut().unwrap().remove(field);
    }
    for item in plain["output"].as_array_mut().unwrap() {
        item.as_object_mut().unwrap().retain(|name, _| name != "id" && name != "call_id");
    }
    plain
}

/// The response that the events of a stream tell of, put together as a client does it.
fn told(streamed: &Response) -> Value {
    let chunks = streamed.chunks();
    let mut items: Vec<Value> = Vec::new();
    for (at, (event, (name, _))) in chunks.iter().zip(streamed.events()).enumerate() {
        assert_eq!(event["sequence_number"], at, "{event}");
        assert_eq!(event["type"].as_str(), name);
        let item = event["output_index"].as_u64().map(|index| index as usize);
        match event["type"].as_str().unwrap().trim_start_matches("response.") {
            "created" | "in_progress" => {
                assert!(at < 2 && event["response"]["status"] == "in_progress");
            }
            "output_item.added" => {
                assert_eq!(item, Some(items.len()));
                items.push(event["item"].clone());
            }
            "content_part.added" => items[item.unwrap()]["content"] = json!([event["part"]]),
            "reasoning_summary_part.added" => {
                assert_eq!(event["summary_index"], 0);
                items[item.unwrap()]["summary"] = json!([event["part"]]);
            }
            kind @ ("output_text.delta"
            | "reasoning_text.delta"
            | "reasoning_summary_text.delta") => {
                let list = if kind.contains("summary") { "summary" } else { "content" };
                let text = &mut items[item.unwrap()][list][0]["text"];
                *text = [text.as_str().unwrap(), event["delta"].as_str().unwrap()].concat().into();
            }
            "function_call_arguments.delta" => {
                let text = &mut items[item.unwrap()]["arguments"];
                *text = [text.as_str().unwrap(), event["delta"].as_str().unwrap()].concat().into();
            }
            "output_text.done" | "reasoning_text.done" => {
                assert_eq!(items[item.unwrap()]["content"][0]["text"], event["text"]);
            }
            "reasoning_summary_text.done" => {
                assert_eq!(items[item.unwrap()]["summary"][0]["text"], event["text"]);
            }
            "reasoning_summary_part.done" => {
                assert_eq!(items[item.unwrap()]["summary"][0], event["part"]);
            }
            "function_call_arguments.done" => {
                assert_eq!(items[item.unwrap()]["arguments"], event["arguments"]);
            }
            "content_part.done" => {
                let own = &mut items[item.unwrap()]["content"][0];
                assert_eq!(own["text"], event["part"]["text"]);
                // What belongs to the text as a whole is known now.
                own.clone_from(&event["part"]);
            }
            "output_item.done" => {
                let mut expected = event["item"].clone();
                let own = &mut items[item.unwrap()];
                assert_eq!(own["id"], expected["id"]);
                if let Some(sealed) = expected.get("encrypted_content") {
                    own["encrypted_content"] = sealed.clone();
                }
                own["status"] = expected["status"].take();
                expected["status"] = own["status"].clone();
                assert_eq!(*own, expected);
            }
            "completed" | "incomplete" => assert_eq!(at + 1, chunks.len()),
            other => panic!("{other}"),
        }
    }
    let last = chunks.last().unwrap()["response"].clone();
    let whole = items.iter().filter(|item| last["output"].as_array().unwrap().contains(item));
    assert_eq!(whole.cloned().collect::<Value>(), last["output"]);
    last
}

fn both(server: &crate::harness::Running, body: &Value) -> (Value, Value) {
    let whole = post(server.at, PATH, body).json();
    let mut stream = body.clone();
    stream["stream"] = true.into();
    (whole, told(&post(server.at, PATH, &stream)))
}

#[test]
fn an_item_may_be_sent_back_by_its_name() {
    let server = start(1);
    let first = post(server.at, PATH, &ask(&json!({"max_output_tokens": 300}))).json();
    let items = first["output"].as_array().unwrap();
    assert!(items.len() > 1, "a thought and an answer: {first}");
    let said = |of: &dyn Fn(&Value) -> Value| {
        let mut input = vec![json!({"role": "user", "content": "What is 7 plus 5?"})];
        input.extend(items.iter().map(of));
        input.push(json!({"role": "user", "content": "And 8?"}));
        let body = ask(&json!({"input": input, "max_output_tokens": 8}));
        let told = post(server.at, PATH, &body).json();
        (told["output"][0]["content"].clone(), told["usage"]["input_tokens"].clone())
    };
    let by_name = said(&|item| json!({"type": "item_reference", "id": item["id"]}));
    assert_eq!(by_name, said(&Clone::clone));
    let lines = crate::client::get(server.at, "/metrics").body;
    assert!(!lines.contains("calls_kept_bytes 0\n"), "they are counted: {lines}");

    let missing = |id: &Value| {
        let reference = json!({"type": "item_reference", "id": id});
        let refused = post(server.at, PATH, &ask(&json!({"input": [reference]})));
        (refused.status, refused.json()["error"]["message"].as_str().unwrap().to_owned())
    };
    let (status, message) = missing(&json!("rs_1"));
    assert!(status == 404 && message.starts_with("Item with id 'rs_1' not found. Items are not"));
    let off = ask(&json!({"store": false, "max_output_tokens": 2}));
    let unkept = post(server.at, PATH, &off).json()["output"][0]["id"].clone();
    assert_eq!(missing(&unkept).0, 404, "who says that nothing shall be kept is heard");
}

#[test]
fn what_clients_of_today_send_and_changes_no_answer_is_taken() {
    let server = start(1);
    for more in [
        json!({"context_management": [{"type": "compaction", "compact_threshold": 200_000}]}),
        json!({"reasoning": {"effort": "low", "mode": "auto"}}),
        json!({"text": {"verbosity": "low"}}),
        json!({"access_programs": ["a"], "image": {"size": "auto"}}),
    ] {
        let mut body = ask(&more);
        body["max_output_tokens"] = 1.into();
        let taken = post(server.at, PATH, &body);
        assert_eq!(taken.status, 200, "{more}: {}", taken.body);
        let told = taken.json();
        assert!(told["reasoning"].as_object().unwrap().contains_key("summary"), "{told}");
        assert_eq!(told["text"]["format"]["type"], "text", "{told}");
    }
}

#[test]
fn the_bytes_of_a_short_response() {
    let server = start(1);
    let short = json!({"enable_thinking": false, "max_output_tokens": 2, "stream": true});
    let lines = steady(&post(server.at, PATH, &ask(&short)).body);
    insta::assert_snapshot!("responses_stream", lines);
}

#[test]
fn a_streamed_response_is_the_whole_one_with_thinking_and_logprobs() {
    let server = start(1);
    let more = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2});
    let (whole, streamed) = both(&server, &ask(&more));
    assert_eq!(plain(&whole), plain(&streamed));
    assert_eq!(whole["status"], "completed");
    let output = whole["output"].as_array().unwrap();
    let kinds: Vec<_> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message"]);
    assert!(!output[0]["content"][0]["text"].as_str().unwrap().is_empty());
    let part = &output[1]["content"][0];
    let odds = part["logprobs"].as_array().unwrap();
    let spelled: String = odds.iter().filter_map(|odds| odds["token"].as_str()).collect();
    assert_eq!(spelled, part["text"].as_str().unwrap());
    assert!(whole["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
    assert_eq!(whole["timings"]["logits_hash"], streamed["timings"]["logits_hash"]);

    let cut = ask(&json!({"reasoning": {"effort": "none"}, "max_output_tokens": 2}));
    let (whole, streamed) = both(&server, &cut);
    assert_eq!(plain(&whole), plain(&streamed));
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(whole["output"][0]["status"], "incomplete");
}

/// Clients send back what they know of a thought: its summary, or what they cannot read.
#[test]
fn a_thought_is_told_and_taken_back_in_every_way() {
    let server = start(1);
    let question = json!({"role": "user", "content": "What is the weather in Paris?"});
    let ask = |input: Value, more: &Value| {
        let mut body = weather(&input);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        both(&server, &body)
    };
    // Templates leave out thoughts of earlier questions, but none before the results of calls.
    let next = |call: &Value, thought: Value| {
        let call = json!({"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": call["arguments"]});
        let output = json!({"type": "function_call_output", "call_id": "c", "output": "{}"});
        let (whole, _) = ask(json!([question, thought, call, output]), &json!({}));
        whole["usage"]["input_tokens"].as_u64().unwrap()
    };
    let mut lengths = Vec::new();
    for (more, part, kind) in [
        (json!({}), "content", "reasoning_text"),
        (json!({"reasoning": {"summary": "auto"}}), "summary", "summary_text"),
        (json!({"include": ["reasoning.encrypted_content"]}), "encrypted_content", ""),
    ] {
        let (whole, streamed) = ask(json!([question]), &more);
        assert_eq!(plain(&whole), plain(&streamed));
        let output = whole["output"].as_array().unwrap();
        let told = &output[0][part];
        assert!(told.is_string() || told[0]["type"] == kind, "{whole}");
        let thought = json!({"type": "reasoning", "id": "rs_1", "summary": [], part: told});
        lengths.push(next(output.last().unwrap(), thought));
        let forgotten = json!({"type": "reasoning", "id": "rs_1", "summary": []});
        assert!(next(output.last().unwrap(), forgotten) < lengths[0], "{part}");
    }
    assert_eq!(lengths, [lengths[0]; 3]);
}

#[test]
fn a_call_goes_there_and_back() {
    let server = start(1);
    let question = json!({"role": "user", "content": "What is the weather in Paris?"});
    let (whole, streamed) = both(&server, &weather(&json!([question])));
    assert_eq!(plain(&whole), plain(&streamed));
    let call = whole["output"].as_array().unwrap().last().unwrap();
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("get_weather")));
    assert_eq!(call["arguments"], r#"{"city": "Paris"}"#);

    let mut input = vec![question];
    input.extend(whole["output"].as_array().unwrap().clone());
    let output = r#"{"condition": "sunny", "temperature": 21}"#;
    input.push(
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": output}),
    );
    let (whole, streamed) = both(&server, &weather(&input.into()));
    assert_eq!(plain(&whole), plain(&streamed));
    let said = whole["output"].as_array().unwrap().last().unwrap();
    assert!(said["content"][0]["text"].as_str().unwrap().contains("sunny in Paris"), "{said}");
    // What was thought and called is in the prompt as it was written: all of it is there already.
    let usage = &whole["usage"];
    let (all, cached) = (&usage["input_tokens"], &usage["input_tokens_details"]["cached_tokens"]);
    assert!(all.as_u64().unwrap() - cached.as_u64().unwrap() < 60, "{usage}");
}

#[test]
fn a_call_that_is_cut_is_text_and_a_format_is_kept() {
    let server = start(1);
    let mut cut = weather(&json!("What is the weather in Paris?"));
    cut["enable_thinking"] = false.into();
    cut["max_output_tokens"] = 18.into();
    let (whole, streamed) = both(&server, &cut);
    assert_eq!(plain(&whole), plain(&streamed));
    let output = whole["output"].as_array().unwrap();
    assert_eq!(output.len(), 1, "{output:?}");
    assert!(output[0]["content"][0]["text"].as_str().unwrap().starts_with("<tool_call>\n"));
    assert_eq!(whole["status"], "incomplete");

    let schema = json!({
        "type": "object", "properties": {"sum": {"type": "integer"}},
        "required": ["sum"], "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "name": "sum", "strict": true, "schema": schema});
    let body = ask(
        &json!({"text": {"format": format}, "temperature": 1.5, "seed": 3, "thinking_budget": 8}),
    );
    let (whole, streamed) = both(&server, &body);
    assert_eq!(plain(&whole), plain(&streamed));
    let text = whole["output"].as_array().unwrap().last().unwrap()["content"][0]["text"].clone();
    let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert!(value["sum"].is_i64(), "{value}");
    assert_eq!(whole["text"]["format"], format, "the request is repeated");
}

fn fail(mut job: Job) {
    let _ = (job.listener)(Update::Started);
    let _ = (job.listener)(Update::Event(Event::Text(Channel::Answer, "half")));
    let path = "/models/that/broke".into();
    let _ = (job.listener)(Update::Failed(EngineError::NoExperts { path }));
}

#[test]
fn a_context_that_is_full_is_an_event_of_a_stream() {
    let server = start(1);
    let long = json!({"input": "word ".repeat(3000), "stream": true});
    let streamed = post(server.at, PATH, &ask(&long));
    assert_eq!(streamed.status, 200, "{}", streamed.body);
    let names: Vec<_> = streamed.events().into_iter().filter_map(|(name, _)| name).collect();
    assert_eq!(names, ["response.created", "response.failed"]);
    let chunks = streamed.chunks();
    let of = |name: &str| [0, 1].map(|at| chunks[at]["response"][name].clone());
    assert_eq!(of("status"), ["in_progress", "failed"]);
    assert_eq!([0, 1].map(|at| &chunks[at]["sequence_number"]), [0, 1]);
    assert_eq!(of("id")[0], of("id")[1]);
    let error = &chunks[1]["response"]["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    assert!(error["message"].as_str().unwrap().starts_with("prompt is too long: "), "{error}");
    let log = server.log.lock().unwrap().join("\n");
    assert!(log.contains("/v1/responses refused=400 id=req_"), "{log}");

    let whole = post(server.at, PATH, &ask(&json!({"input": "word ".repeat(3000)})));
    assert_eq!((whole.status, &whole.json()["error"]["param"]), (400, &json!("input")));
    let other = post(server.at, PATH, &ask(&json!({"stream": true, "colour": "red"})));
    assert_eq!(other.status, 400, "{}", other.body);
}

#[test]
fn an_engine_that_fails_is_a_response_that_failed() {
    let server = scripted(Script::Play(fail));
    let whole = post(server.at, PATH, &ask(&json!({})));
    assert_eq!((whole.status, &whole.json()["error"]["type"]), (500, &json!("server_error")));
    let streamed = post(server.at, PATH, &ask(&json!({"stream": true})));
    let last = streamed.chunks().pop().unwrap();
    assert_eq!(last["type"], "response.failed");
    let error = &last["response"]["error"];
    assert!(error["message"].as_str().unwrap().contains("/models/that/broke"), "{error}");
    assert!(!streamed.body.contains("response.completed"));
}
