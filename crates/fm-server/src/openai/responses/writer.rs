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
use serde_json::{Map, Value, json};

use super::Form;
use crate::{
    answer::{CallPiece, Piece, Requested, TokenOdds},
    openai::{error, odds::Entries},
    problem::Problem,
    serve,
    stream::{Encode, Out},
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
    /// Its text or arguments so far.
    text: String,
    odds: Vec<TokenOdds>,
}

enum Kind {
    Text(Channel),
    Call { id: String, called: String },
}

impl Item {
    fn new(kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Text(Channel::Thinking) => "rs_",
            Kind::Text(Channel::Answer) => "msg_",
            Kind::Call { .. } => "fc_",
        };
        Self { id: serve::new_id(prefix), kind, text: String::new(), odds: Vec::new() }
    }

    /// The part that is all of it; calls have none.
    fn part(&self, tokenizer: &Tokenizer) -> Value {
        let text = &self.text;
        match self.kind {
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
            Kind::Text(Channel::Thinking) => json!({
                "id": id, "type": "reasoning", "status": status, "summary": [],
                "content": content(),
            }),
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
            Kind::Text(Channel::Thinking) => "reasoning_text",
            Kind::Text(Channel::Answer) => "output_text",
            Kind::Call { .. } => "function_call_arguments",
        }
    }

    fn is(&self, channel: Channel) -> bool {
        matches!(self.kind, Kind::Text(own) if own == channel)
    }
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
    pub(super) fn response(&mut self, requested: &Requested) -> Value {
        self.leave(&mut Out::default());
        let (status, reason) = self.status();
        let mut response = self.frame(status);
        if let Some(reason) = reason {
            response["incomplete_details"] = json!({"reason": reason});
        } else {
            response["completed_at"] = serve::now_unix().into();
        }
        response["usage"] = usage(requested);
        response["timings"] = requested.timings();
        response
    }

    fn status(&self) -> (&'static str, Option<&'static str>) {
        match self.end {
            None | Some(FinishReason::Stop | FinishReason::StopString(_)) => ("completed", None),
            Some(_) => ("incomplete", Some("max_output_tokens")),
        }
    }

    fn frame(&self, status: &str) -> Value {
        let output = self.output.iter().map(|(item, status)| item.value(status, &self.form));
        let mut frame = json!({
            "id": self.form.id,
            "object": "response",
            "created_at": self.form.created_unix,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "output": output.collect::<Value>(),
            "usage": null,
        });
        for (name, value) in &self.form.repeated {
            frame[name] = value.clone();
        }
        frame
    }

    /// An event of the response as it is so far.
    fn going(&mut self, out: &mut Out, kind: &str) {
        let frame = self.frame("in_progress");
        self.event(out, kind, json!({"response": frame}));
    }

    fn event(&mut self, out: &mut Out, kind: &str, fields: Value) {
        let mut event = Map::new();
        event.insert("type".to_owned(), format!("response.{kind}").into());
        event.insert("sequence_number".to_owned(), self.events.into());
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        self.events += 1;
        out.named(&event.into());
    }

    /// An event of the item that is open.
    fn of_item(&mut self, out: &mut Out, kind: &str, fields: Value) {
        let Some(item) = &self.open else { return };
        let mut event = json!({"item_id": item.id, "output_index": self.begun - 1});
        if matches!(item.kind, Kind::Text(_)) {
            event["content_index"] = 0.into();
        }
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        self.event(out, kind, event);
    }

    fn enter(&mut self, out: &mut Out, kind: Kind) {
        self.leave(out);
        let item = Item::new(kind);
        let value = item.value("in_progress", &self.form);
        let part = item.part(self.tokenizer());
        let has_parts = matches!(item.kind, Kind::Text(_));
        let index = self.begun;
        self.begun += 1;
        self.open = Some(item);
        self.event(out, "output_item.added", json!({"output_index": index, "item": value}));
        if has_parts {
            self.of_item(out, "content_part.added", json!({"part": part}));
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
            self.of_item(out, "content_part.done", json!({"part": part}));
        }
        let Some(item) = self.open.take() else { return };
        let value = item.value(status, &self.form);
        let index = self.begun - 1;
        self.event(out, "output_item.done", json!({"output_index": index, "item": value}));
        // A call that was none is told as text.
        if status == "completed" || !is_call {
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
                let mut frame = self.frame("failed");
                let error = &error(&problem)["error"];
                let code = error["code"].as_str().unwrap_or("server_error");
                frame["error"] = json!({"code": code, "message": error["message"]});
                self.event(out, "failed", json!({"response": frame}));
            }
        }
    }

    fn close(&mut self, out: &mut Out, requested: &Requested) {
        let (kind, _) = self.status();
        let response = self.response(requested);
        self.event(out, kind, json!({"response": response}));
    }
}
