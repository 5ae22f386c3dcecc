//! However the bytes of a text are shared out among tokens, it is told alike, and the answer says which tokens it is
//! made of.

use std::{collections::HashMap, path::Path, sync::LazyLock};

use fm_text::{AnswerForm, Definitions, SpecialTokens, tools::DIALECTS};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// The demonstration's tokens, and those of single bytes.
struct Vocabulary {
    tokenizer: Tokenizer,
    bytes: HashMap<u8, u32>,
}

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let tokenizer = Tokenizer::open(&dir, None).unwrap();
    let ids = 0..tokenizer.vocab_len() as u32;
    let byte = |id: u32| match tokenizer.token_bytes(id) {
        Some([byte]) if !tokenizer.is_special(id) => Some((*byte, id)),
        _ => None,
    };
    let bytes: HashMap<u8, u32> = ids.filter_map(byte).collect();
    assert_eq!(bytes.len(), 256, "any byte can be a token");
    Vocabulary { tokenizer, bytes }
});

/// What a text is made of: control tokens, which cannot be split, and letters, which can.
const FRAGMENTS: &[&str] = &[
    "<think>",
    "</think>",
    "\n</think>\n\n",
    "<tool_call>",
    "</tool_call>",
    "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"東京\"}}\n</tool_call>",
    "{\"name\": \"look\", \"arguments\": {\"city\": \"STOP\"",
    "<tool_call>\n<function=look>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
    "<function=look>\n<parameter=days>\n3",
    "<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>",
    "<minimax:tool_call>\n<invoke name=\"look\">\n<parameter name=\"city\">Bern</parameter>\n</invoke>\n",
    "</minimax:tool_call>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{\"days\": 1}<｜tool▁call▁end｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>",
    "[TOOL_CALLS][{\"name\": \"look\", \"arguments\": {}}]",
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant",
    "<|channel|>final<|message|>",
    "<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"days\": 3}<|call|>",
    "<|im_end|>",
    "STOP",
    "ST",
    "OP🚀",
    "🚀",
    "é",
    "\n",
    " ",
    "the end. ",
    "<",
    "}}",
];

/// A piece of a text.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Control(u32),
    Letters(Vec<u8>),
}

/// A text as control tokens and the letters between them.
fn pieces(fragments: &[(&str, bool)]) -> Vec<Piece> {
    let Vocabulary { tokenizer, .. } = &*VOCABULARY;
    let mut pieces = Vec::new();
    for (fragment, torn) in fragments {
        let control = tokenizer.token_id(fragment);
        let letters = tokenizer.encode(fragment, SpecialTokens::AsText).unwrap();
        if let Some(id) = control.filter(|id| letters != [*id]) {
            pieces.push(Piece::Control(id));
            continue;
        }
        // A character that is cut for good is a text too.
        let bytes = &fragment.as_bytes()[usize::from(*torn)..];
        match pieces.last_mut() {
            Some(Piece::Letters(letters)) => letters.extend_from_slice(bytes),
            _ => pieces.push(Piece::Letters(bytes.to_vec())),
        }
    }
    pieces
}

/// Its tokens if letters are cut after so many bytes, again and again; and how much that cannot be split each has.
fn tokens(pieces: &[Piece], sizes: &[usize]) -> (Vec<u32>, Vec<usize>) {
    let Vocabulary { tokenizer, bytes } = &*VOCABULARY;
    let mut sizes = sizes.iter().cycle();
    let (mut tokens, mut widths) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut letters = match piece {
            Piece::Control(id) => {
                tokens.push(*id);
                widths.push(1);
                continue;
            }
            Piece::Letters(letters) => letters.as_slice(),
        };
        while !letters.is_empty() {
            let (now, rest) = letters.split_at(letters.len().min(*sizes.next().unwrap()));
            match std::str::from_utf8(now) {
                Ok(text) => tokens.extend(tokenizer.encode(text, SpecialTokens::AsText).unwrap()),
                Err(_) => tokens.extend(now.iter().map(|byte| bytes[byte])),
            }
            letters = rest;
            let new = &tokens[widths.len()..];
            widths.extend(new.iter().map(|id| tokenizer.token_bytes(*id).unwrap().len()));
        }
    }
    (tokens, widths)
}

/// Everything that was told, neighbours of a kind put together.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    script: Vec<(String, String)>,
    said: Said,
}

/// Tokens of the answer, and where they begin in it.
#[derive(Debug, Default, PartialEq)]
struct Said {
    tokens: Vec<(usize, usize)>,
    /// Those whose text has come.
    told: usize,
    /// Bytes of the answer.
    bytes: usize,
}

impl Said {
    /// Tokens come with the text that they begin in.
    fn text(&mut self, bytes: usize) {
        let text = self.bytes..self.bytes + bytes;
        assert!(self.tokens[self.told..].iter().all(|(_, at)| text.contains(at)), "{self:?}");
        (self.told, self.bytes) = (self.tokens.len(), text.end);
    }
}

impl Heard {
    fn add(&mut self, kind: String, text: &str) {
        match self.script.last_mut() {
            Some((own, said)) if *own == kind => said.push_str(text),
            _ => self.script.push((kind, text.to_owned())),
        }
    }
}

impl Hear for Heard {
    fn hear(&mut self, event: Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Said { token, at } => self.said.tokens.push((token, at)),
            Event::Text(channel, text) => {
                if channel == Channel::Answer {
                    self.said.text(text.len());
                }
                self.add(format!("{channel:?}"), text);
            }
            Event::Call(call, CallPart::Arguments(json)) => {
                self.add(format!("arguments {call}"), json);
            }
            // Two of these are never one.
            Event::Call(call, part) => {
                self.script.push((format!("{call} {part:?}"), String::new()));
            }
            Event::Prefill { .. } | Event::Token(_) => unreachable!("a stream tells neither"),
        }
        ControlFlow::Continue(())
    }
}

/// What a stream has told in the end, with all that it remembers.
type Outcome = (Heard, Option<FinishReason>, String, String, Vec<Call>, usize);

fn told(request: &Request, constrained: Option<Constrained>, tokens: &[u32]) -> Outcome {
    let mut stream = TextStream::new(&VOCABULARY.tokenizer, request, usize::MAX).unwrap();
    stream.constrained = constrained;
    let mut heard = Heard::default();
    let (mut finish, mut channels) = (None, Vec::new());
    for token in tokens {
        channels.push(stream.channel());
        finish = match constrained {
            None => stream.push(*token, &mut heard).unwrap(),
            Some(_) => stream.push_constrained(*token, &mut heard).unwrap(),
        };
        if finish.is_some() {
            break;
        }
    }
    let ill_formed = if finish.is_none() { stream.ill_formed() } else { 0 };
    finish = stream.finish(FinishReason::Stop, &mut heard).or(finish);
    let Said { tokens, told, .. } = &heard.said;
    assert_eq!(*told, tokens.len(), "no token comes without its text");
    assert!(tokens.iter().all(|(token, _)| channels[*token] == Channel::Answer), "{tokens:?}");
    let Told { answer, thinking, calls, .. } = stream.told;
    (heard, finish, answer, thinking, calls, ill_formed)
}

fn requests() -> impl Strategy<Value = (Request, Option<Constrained>)> {
    let parameters =
        json!({"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": parameters}});
    let constrained =
        [None, Some(Constrained::Answer), Some(Constrained::Calls), Some(Constrained::Either)];
    let states =
        [ThinkingState::None, ThinkingState::Closed, ThinkingState::Open, ThinkingState::Absent];
    (
        prop::sample::select(DIALECTS.iter().collect::<Vec<_>>()),
        prop::sample::select(constrained.to_vec()),
        prop::sample::select(states.to_vec()),
        any::<(bool, bool)>(),
        prop::sample::select(vec!["", "<tool_call>\n"]),
    )
        .prop_map(move |(dialect, constrained, thinking, (stops, one), opening)| {
            // A grammar begins behind the thought, and an opening is that of a call.
            let within = matches!(constrained, Some(Constrained::Answer | Constrained::Either));
            let thinking = if within { ThinkingState::Closed } else { thinking };
            let opening = if within || thinking == ThinkingState::Open { "" } else { opening };
            let calls = Some(Definitions::new(std::slice::from_ref(&tool)).into());
            let request = Request {
                stop: if stops {
                    vec!["STOP".to_owned(), "🚀🚀".to_owned()]
                } else {
                    Vec::new()
                },
                thinking,
                answer: AnswerForm { dialect: Some(dialect), calls },
                opening: opening.to_owned(),
                calls_max: one.then_some(1),
                ..Request::default()
            };
            (request, constrained)
        })
}

/// A model that ends its turn in a thought has called what the thought ends with; one that was cut may have gone on.
#[test]
fn a_thought_calls_where_the_model_ended_it_and_no_more_than_is_wanted() {
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": {}}});
    let calls = Some(Definitions::new(std::slice::from_ref(&tool)).into());
    let answer =
        AnswerForm { dialect: DIALECTS.iter().find(|dialect| dialect.name == "hermes"), calls };
    let call = "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>\n";
    let text = format!("hm\n{call}{call}");
    let tokens = VOCABULARY.tokenizer.encode(&text, SpecialTokens::Parse).unwrap();
    for (reason, calls_max, expected) in [
        (FinishReason::Stop, None, 2),
        (FinishReason::Stop, Some(1), 1),
        (FinishReason::Length, None, 0),
    ] {
        let thinking = ThinkingState::Open;
        let request = Request { thinking, answer: answer.clone(), calls_max, ..Request::default() };
        let mut stream = TextStream::new(&VOCABULARY.tokenizer, &request, usize::MAX).unwrap();
        let mut heard = Heard::default();
        for token in &tokens {
            assert_eq!(stream.push(*token, &mut heard).unwrap(), None);
        }
        assert_eq!(stream.finish(reason, &mut heard), None);
        assert_eq!(stream.told.calls.len(), expected, "{reason:?}");
        assert_eq!(stream.told.thinking.trim_end(), text.trim_end());
    }
}

/// The text before a call may end as a stop string begins, and that of a call that breaks off may go on with it.
#[test]
fn a_call_that_breaks_off_behind_the_start_of_a_stop_string_is_text() {
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": {}}});
    let calls = Some(Definitions::new(std::slice::from_ref(&tool)).into());
    let request = Request {
        stop: vec!["ST<tool_call".to_owned()],
        answer: AnswerForm {
            dialect: DIALECTS.iter().find(|dialect| dialect.name == "hermes"),
            calls,
        },
        ..Request::default()
    };
    let text = "ST<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"";
    let tokens = VOCABULARY.tokenizer.encode(text, SpecialTokens::AsText).unwrap();
    let (_, finish, answer, _, calls, _) = told(&request, None, &tokens);
    assert_eq!((finish, answer.as_str(), calls.len()), (None, text, 0));
}

#[test]
fn tokens_that_the_model_has_no_rows_for_are_not_put_into_its_texts() {
    let tokenizer = &VOCABULARY.tokenizer;
    let close = tokenizer.token_id("</think>").unwrap();
    let request = Request { think_budget: Some(5), ..Request::default() };
    let mut stream = TextStream::new(tokenizer, &request, close as usize).unwrap();
    assert_eq!(stream.closer(), Some(close), "the model may not know it, and never ends a thought");
    let refused = stream.think_end();
    assert!(
        matches!(refused, Err(EngineError::NoRow { token, .. }) if token == close),
        "{refused:?}"
    );
    let mut stream = TextStream::new(tokenizer, &request, close as usize + 1).unwrap();
    stream.think_end().unwrap();
}

/// It may choose to think on, and would do so for ever.
#[test]
fn a_model_that_may_call_chooses_once_what_comes_behind_a_closed_thought() {
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": {}}});
    let dialect = DIALECTS.iter().find(|dialect| dialect.name == "harmony");
    let tokenizer = &VOCABULARY.tokenizer;
    for calls in [None, Some(Definitions::new(std::slice::from_ref(&tool)).into())] {
        let may_call = calls.is_some();
        let answer = AnswerForm { dialect, calls };
        let request = Request { answer, ..Request::default() };
        let mut stream = TextStream::new(tokenizer, &request, usize::MAX).unwrap();
        for chooses in [may_call, false, false] {
            let answer = if chooses { "" } else { "<|channel|>final<|message|>" };
            let want = format!("<|end|><|start|>assistant{answer}");
            let want = tokenizer.encode(&want, SpecialTokens::Parse).unwrap();
            assert_eq!(stream.think_end().unwrap(), want);
        }
    }
}

#[test]
fn an_answer_begins_without_the_space_of_its_tokenizer_and_a_continued_text_keeps_it() {
    let pieces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/pieces");
    let tokenizer = Tokenizer::open(&pieces, None).unwrap();
    let tokens = tokenizer.encode("a b", SpecialTokens::Parse).unwrap();
    for (begins, text) in [(true, "a b"), (false, " a b")] {
        for constrained in [Constrained::Answer, Constrained::Either] {
            let request = Request { begins, top_logprobs: Some(0), ..Request::default() };
            let mut stream = TextStream::new(&tokenizer, &request, usize::MAX).unwrap();
            stream.constrained = (constrained == Constrained::Answer).then_some(constrained);
            let mut heard = Heard::default();
            for token in &tokens {
                stream.push_constrained(*token, &mut heard).unwrap();
            }
            stream.finish(FinishReason::Stop, &mut heard);
            assert_eq!(stream.told.answer, text, "{constrained:?}");
        }
    }
}

/// Tags may be special tokens, which are no text as a rule.
#[test]
fn a_thinking_block_may_stand_between_special_tokens() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(demo).unwrap()).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    added.iter_mut().for_each(|token| token["special"] = true.into());
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    let tokenizer = Tokenizer::open(dir.path(), None).unwrap();
    let tokens = tokenizer.encode("<think>hm</think>yes", SpecialTokens::Parse).unwrap();
    assert!(tokenizer.is_special(tokens[0]));
    let read = |thinking| {
        let request = Request { thinking, ..Request::default() };
        let mut stream = TextStream::new(&tokenizer, &request, usize::MAX).unwrap();
        for token in &tokens {
            stream.push(*token, &mut Heard::default()).unwrap();
        }
        (stream.told.thinking, stream.told.answer)
    };
    assert_eq!(read(ThinkingState::None), ("hm".to_owned(), "yes".to_owned()));
    assert_eq!(read(ThinkingState::Absent), (String::new(), "hmyes".to_owned()));
}

fn fragments() -> impl Strategy<Value = Vec<(&'static str, bool)>> {
    let torn = prop::bool::weighted(0.05);
    prop::collection::vec((prop::sample::select(FRAGMENTS), torn), 0..10)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn tokens_may_end_anywhere(
        (request, constrained) in requests(),
        fragments in fragments(),
        sizes in prop::collection::vec(1_usize..9, 1..6),
    ) {
        let pieces = pieces(&fragments);
        let whole = told(&request, constrained, &tokens(&pieces, &[usize::MAX]).0);
        for sizes in [&sizes[..], &[1]] {
            prop_assert_eq!(&told(&request, constrained, &tokens(&pieces, sizes).0), &whole);
        }
    }

    /// With a token for every byte these are the bytes of the answer; larger ones go where their first byte goes.
    #[test]
    fn an_answer_is_made_of_the_tokens_that_begin_in_it(
        (request, constrained) in requests(),
        fragments in fragments(),
        sizes in prop::collection::vec(1_usize..9, 1..6),
    ) {
        let request = Request { top_logprobs: Some(0), ..request };
        let pieces = pieces(&fragments);
        let (letters, _) = tokens(&pieces, &[1]);
        let (heard, _, answer, ..) = told(&request, constrained, &letters);
        let (mut bytes, mut before) = (Vec::new(), None);
        for (token, at) in &heard.said.tokens {
            // Between two messages of the answer a line ends that no token has written.
            let is_apart = before.map_or_else(
                || !request.opening.starts_with(&answer[..*at]),
                |before| !bytes.ends_with(b"\n") || at - before > 1,
            );
            if is_apart && answer.as_bytes()[at - 1] == b'\n' {
                bytes.push(b'\n');
            }
            before = Some(*at);
            let own = VOCABULARY.tokenizer.token_bytes(letters[*token]).unwrap();
            let torn = answer.is_char_boundary(*at) && answer[*at..].starts_with('\u{FFFD}');
            prop_assert!(torn || answer.as_bytes()[*at] == own[0], "{} {}", answer, at);
            bytes.extend_from_slice(own);
        }
        let spelled = String::from_utf8_lossy(&bytes);
        let opening = answer.strip_suffix(&*spelled);
        prop_assert!(opening.is_some_and(|own| request.opening.starts_with(own)), "{answer}: {spelled}");
        let places: HashMap<usize, usize> = heard.said.tokens.iter().copied().collect();
        for sizes in [&sizes[..], &[usize::MAX]] {
            let (tokens, widths) = tokens(&pieces, sizes);
            let begins = widths.iter().scan(0, |at, width| {
                *at += width;
                Some(*at - width)
            });
            let expected = begins.enumerate().filter_map(|(i, at)| Some((i, *places.get(&at)?)));
            let (heard, ..) = told(&request, constrained, &tokens);
            prop_assert_eq!(heard.said.tokens, expected.collect::<Vec<_>>());
        }
    }
}
