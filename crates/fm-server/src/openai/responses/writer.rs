//! A response in the making: its items, and the events that tell of them.
//!
//! ```text
//! created, in_progress
//!   output_item.added ─► content_part.added ─► deltas ─► done ─► content_part.done ─► output_item.done
//! completed │ incomplete │ failed
//! ```
//!
//! A response that is not streamed is what this has written at the end.

use fm_engine::generate::FinishReason;
use fm_text::{Channel, Tokenizer};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Form, SEAL, Thoughts, repeated::Repeated};
use crate::{
    answer::{CallPiece, Piece, TokenOdds},
    openai::{error, odds::Entries},
    problem::Problem,
    serve,
    stream::{Encode, Out},
    tally::Requested,
};

/// See the module.
pub(super) struct Writer {
    form: Form,
    /// Events so far.
    events: u64,
    /// Items that have begun.
    begun: usize,
    /// Items that are complete, each with its status.
    output: Vec<(Item, &'static str)>,
    open: Option<Item>,
    /// Tokens of the text that comes next.
    odds: Vec<TokenOdds>,
    end: Option<FinishReason>,
}

/// The item that is being written.
struct Item {
    id: String,
    kind: Kind,
    /// How it is told, if it is a thought.
    thoughts: Thoughts,
    /// Its text or arguments so far.
    text: String,
    odds: Vec<TokenOdds>,
}

enum Kind {
    Text(Channel),
    Call { id: String, called: String },
}

impl Item {
    fn new(kind: Kind, thoughts: Thoughts) -> Self {
        let prefix = match kind {
            Kind::Text(Channel::Thinking) => "rs_",
            Kind::Text(Channel::Answer) => "msg_",
            Kind::Call { .. } => "fc_",
        };
        Self { id: serve::new_id(prefix), kind, thoughts, text: String::new(), odds: Vec::new() }
    }

    /// The part that is all of it; calls have none.
    fn part(&self, tokenizer: &Tokenizer) -> Value {
        let text = &self.text;
        match self.kind {
            Kind::Text(Channel::Thinking) if self.thoughts.summarised => {
                json!({"type": "summary_text", "text": text})
            }
            Kind::Text(Channel::Thinking) => json!({"type": "reasoning_text", "text": text}),
            _ => json!({
                "type": "output_text", "text": text, "annotations": [],
                "logprobs": Entries { tokenizer, odds: &self.odds },
            }),
        }
    }

    /// All of it; of one that has just begun there is nothing yet.
    fn value(&self, status: &str, form: &Form) -> Value {
        let id = &self.id;
        let content = || match status {
            "in_progress" => json!([]),
            _ => Value::Array(vec![self.part(&form.app.model.tokenizer)]),
        };
        match &self.kind {
            Kind::Text(Channel::Thinking) => {
                let mut value =
                    json!({"id": id, "type": "reasoning", "status": status, "summary": []});
                value[if self.thoughts.summarised { "summary" } else { "content" }] = content();
                if self.thoughts.sealed && status != "in_progress" {
                    value["encrypted_content"] = [SEAL, &self.text].concat().into();
                }
                value
            }
            Kind::Text(Channel::Answer) => json!({
                "id": id, "type": "message", "status": status, "role": "assistant",
                "content": content(),
            }),
            Kind::Call { id: call, called } => {
                let mut value = json!({
                    "id": id, "type": "function_call", "status": status, "call_id": call,
                    "name": called, "arguments": self.text,
                });
                if let Some((namespace, name)) = form.namespaces.place_of(called) {
                    value["namespace"] = namespace.into();
                    value["name"] = name.into();
                }
                value
            }
        }
    }

    /// What its events are called.
    fn word(&self) -> &'static str {
        match self.kind {
            Kind::Text(Channel::Thinking) if self.thoughts.summarised => "reasoning_summary_text",
            Kind::Text(Channel::Thinking) => "reasoning_text",
            Kind::Text(Channel::Answer) => "output_text",
            Kind::Call { .. } => "function_call_arguments",
        }
    }

    /// What its one part is called, and where its number stands; calls have none.
    fn part_words(&self) -> Option<(&'static str, &'static str)> {
        match self.kind {
            Kind::Text(Channel::Thinking) if self.thoughts.summarised => {
                Some(("reasoning_summary_part", "summary_index"))
            }
            Kind::Text(_) => Some(("content_part", "content_index")),
            Kind::Call { .. } => None,
        }
    }

    fn is(&self, channel: Channel) -> bool {
        matches!(self.kind, Kind::Text(own) if own == channel)
    }
}

/// A response as it is so far: what tells of it is written once, and the output.
#[derive(Serialize)]
pub(super) struct Frame<'w> {
    id: &'w str,
    object: &'static str,
    created_at: u64,
    status: &'static str,
    background: bool,
    error: Value,
    incomplete_details: Value,
    output: Vec<Value>,
    usage: Value,
    #[serde(flatten)]
    repeated: &'w Repeated,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed_at: Option<u64>,
    #[serde(skip_serializing_if = "Value::is_null")]
    timings: Value,
}

#[derive(Serialize)]
struct Event<F> {
    r#type: String,
    sequence_number: u64,
    #[serde(flatten)]
    fields: F,
}

/// The fields of an event of a whole response.
#[derive(Serialize)]
struct Whole<'w> {
    response: Frame<'w>,
}

impl Writer {
    pub(super) fn new(form: Form) -> Self {
        let (output, odds) = (Vec::new(), Vec::new());
        Self { form, events: 0, begun: 0, output, open: None, odds, end: None }
    }

    /// Writes a piece of a response that is not streamed.
    pub(super) fn write(&mut self, piece: Piece) -> Result<(), Problem> {
        if let Piece::Failed(problem) = piece {
            return Err(problem);
        }
        self.piece(&mut Out::default(), 0, piece);
        Ok(())
    }

    /// The response as it is now that all is written.
    pub(super) fn response(&mut self, requested: &Requested) -> Frame<'_> {
        self.leave(&mut Out::default());
        self.end(requested)
    }

    /// All events of a response that nobody begins to write.
    pub(super) fn failed(mut self, problem: Problem) -> Out {
        let mut out = Out::default();
        self.going(&mut out, "created");
        self.piece(&mut out, 0, Piece::Failed(problem));
        out
    }

    fn end(&self, requested: &Requested) -> Frame<'_> {
        let (status, reason) = self.status();
        let reason = reason.map(|reason| json!({"reason": reason}));
        Frame {
            completed_at: reason.is_none().then(serve::now_unix),
            incomplete_details: reason.unwrap_or_default(),
            usage: usage(requested),
            timings: requested.timings(),
            ..self.frame(status)
        }
    }

    fn status(&self) -> (&'static str, Option<&'static str>) {
        if self.end.is_some_and(FinishReason::is_cut) {
            ("incomplete", Some("max_output_tokens"))
        } else {
            ("completed", None)
        }
    }

    fn frame(&self, status: &'static str) -> Frame<'_> {
        let output = self.output.iter().map(|(item, status)| item.value(status, &self.form));
        Frame {
            id: &self.form.id,
            object: "response",
            created_at: self.form.created_unix,
            status,
            background: false,
            error: Value::Null,
            incomplete_details: Value::Null,
            output: output.collect(),
            usage: Value::Null,
            repeated: &self.form.repeated,
            completed_at: None,
            timings: Value::Null,
        }
    }

    /// An event of the response as it is so far.
    fn going(&mut self, out: &mut Out, kind: &str) {
        let number = self.count();
        tell(out, (kind, number), Whole { response: self.frame("in_progress") });
    }

    fn event(&mut self, out: &mut Out, kind: &str, fields: Value) {
        tell(out, (kind, self.count()), fields);
    }

    /// The number of the event that comes now.
    fn count(&mut self) -> u64 {
        self.events += 1;
        self.events - 1
    }

    /// An event of the item that is open.
    fn of_item(&mut self, out: &mut Out, kind: &str, fields: Value) {
        let Some(item) = &self.open else { return };
        let mut event = json!({"item_id": item.id, "output_index": self.begun - 1});
        if let Some((_, index)) = item.part_words() {
            event[index] = 0.into();
        }
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        self.event(out, kind, event);
    }

    fn enter(&mut self, out: &mut Out, kind: Kind) {
        self.leave(out);
        let item = Item::new(kind, self.form.thoughts);
        let value = item.value("in_progress", &self.form);
        let part = item.part(self.tokenizer());
        let part_words = item.part_words();
        let index = self.begun;
        self.begun += 1;
        self.open = Some(item);
        self.event(out, "output_item.added", json!({"output_index": index, "item": value}));
        if let Some((word, _)) = part_words {
            self.of_item(out, &format!("{word}.added"), json!({"part": part}));
        }
    }

    fn delta(&mut self, out: &mut Out, text: &str) {
        let answers = self.open.as_ref().is_some_and(|item| item.is(Channel::Answer));
        let odds = if answers { std::mem::take(&mut self.odds) } else { Vec::new() };
        let own = answers.then(|| json!(Entries { tokenizer: self.tokenizer(), odds: &odds }));
        let Some(item) = &mut self.open else { return };
        item.text.push_str(text);
        let kind = format!("{}.delta", item.word());
        let mut fields = json!({"delta": text});
        if let Some(own) = own {
            fields["logprobs"] = own;
        }
        item.odds.extend(odds);
        self.of_item(out, &kind, fields);
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.form.app.model.tokenizer
    }

    /// Completes the item that is open.
    fn leave(&mut self, out: &mut Out) {
        self.close_item(out, "completed");
    }

    fn close_item(&mut self, out: &mut Out, status: &'static str) {
        let Some(item) = &self.open else { return };
        let (done, text) = (format!("{}.done", item.word()), &item.text);
        let is_call = matches!(item.kind, Kind::Call { .. });
        if is_call {
            self.of_item(out, &done, json!({"arguments": text}));
        } else {
            let mut fields = json!({"text": text});
            if item.is(Channel::Answer) {
                fields["logprobs"] =
                    json!(Entries { tokenizer: self.tokenizer(), odds: &item.odds });
            }
            self.of_item(out, &done, fields);
            let Some(item) = &self.open else { return };
            let part = item.part(self.tokenizer());
            let word = item.part_words().map_or("", |(word, _)| word);
            self.of_item(out, &format!("{word}.done"), json!({"part": part}));
        }
        let Some(item) = self.open.take() else { return };
        let value = item.value(status, &self.form);
        let index = self.begun - 1;
        self.event(out, "output_item.done", json!({"output_index": index, "item": &value}));
        // A call that was none is told as text.
        if status == "completed" || !is_call {
            if self.form.keeps {
                self.form.app.kept.put_item(&item.id, &without_odds(value));
            }
            self.output.push((item, status));
        }
    }

    fn call(&mut self, out: &mut Out, call: usize, piece: CallPiece) {
        match piece {
            CallPiece::Begin(called) => {
                let id = self.form.ids.id(0, call);
                self.enter(out, Kind::Call { id, called });
            }
            CallPiece::Arguments(json) => self.delta(out, &json),
            CallPiece::End => self.leave(out),
            CallPiece::Broken => self.close_item(out, "incomplete"),
        }
    }

    /// The last item of a text that was cut.
    fn cut(&mut self, out: &mut Out) {
        let status = self.status().0;
        self.close_item(out, status);
    }
}

/// An item without the log-probabilities of its tokens, which may be as many as a text of its own.
fn without_odds(mut item: Value) -> Value {
    for part in item["content"].as_array_mut().into_iter().flatten() {
        part.as_object_mut().into_iter().for_each(|part| drop(part.remove("logprobs")));
    }
    item
}

fn tell(out: &mut Out, (kind, number): (&str, u64), fields: impl Serialize) {
    let name = format!("response.{kind}");
    out.event(&name, &Event { r#type: name.clone(), sequence_number: number, fields });
}

fn usage(requested: &Requested) -> Value {
    let Requested { prompt_tokens, written_tokens, thinking_tokens, cached_tokens, .. } = requested;
    json!({
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
        "output_tokens": written_tokens,
        "output_tokens_details": {"reasoning_tokens": thinking_tokens},
        "total_tokens": prompt_tokens + written_tokens,
    })
}

impl Encode for Writer {
    fn open(&mut self, out: &mut Out, _: &Requested) {
        self.going(out, "created");
        self.going(out, "in_progress");
    }

    fn keep_alive(&mut self, out: &mut Out) {
        self.going(out, "in_progress");
    }

    fn piece(&mut self, out: &mut Out, _: usize, piece: Piece) {
        match piece {
            Piece::Token(odds) => self.odds.push(odds),
            Piece::Call(call, piece) => self.call(out, call, piece),
            Piece::Text(channel, text) => {
                if !self.open.as_ref().is_some_and(|item| item.is(channel)) {
                    self.enter(out, Kind::Text(channel));
                }
                self.delta(out, &text);
            }
            Piece::Done(generated) => {
                self.end = Some(generated.finish);
                self.cut(out);
            }
            Piece::Failed(problem) => {
                self.close_item(out, "incomplete");
                let error = &error(&problem)["error"];
                let code = error["code"].as_str().unwrap_or("server_error");
                let error = json!({"code": code, "message": error["message"]});
                let number = self.count();
                let response = Frame { error, ..self.frame("failed") };
                tell(out, ("failed", number), Whole { response });
            }
        }
    }

    fn close(&mut self, out: &mut Out, requested: &Requested) {
        self.leave(out);
        let number = self.count();
        tell(out, (self.status().0, number), Whole { response: self.end(requested) });
    }
}
