//! Messages to prompt, by the template the model was trained with.
//!
//! Templates are Jinja as `transformers` runs it: Python semantics, `trim_blocks` and
//! `lstrip_blocks` on, a handful of extra functions. `minijinja` is the engine; the rest of Python
//! that templates see (`json.dumps`, `repr`, string methods, `strftime`) is in the files below.

mod guard;
mod json;
mod message;
mod python;
mod source;
mod strftime;
mod written;

use std::{
    collections::HashMap,
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
    time::SystemTime,
};

use minijinja::{AutoEscape, Environment, ErrorKind, Value, syntax::SyntaxConfig, value::Serde};
use serde_json::Map;

pub use self::{message::Message, python::RaisedException};
use crate::{error::TextError, files, tools::Dialect, vocabulary::Vocabulary};

/// How long a template may run, in instructions: about a second. A long conversation needs a few
/// hundred for each message.
const FUEL: u64 = 20_000_000;

/// The longest template, many times as long as those that we met.
const BYTES_MAX: usize = 256 << 10;

/// A chain of operators (`1+1+1…`) is parsed, compiled and dropped by recursion, a level for each, which the parser's own
/// limit does not count: so much is enough for a template that is nothing else. What is not touched takes no memory.
const STACK_BYTES: usize = 256 << 20;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// The directory of all templates but the default one.
const ADDITIONAL: &str = "additional_chat_templates";

/// Names for whether the model shall think: in most templates, and in those of `DeepSeek` since V3.1.
const THINKING_NAMES: [&str; 2] = ["enable_thinking", "thinking"];

/// How much thought a model shall give to an answer.
const EFFORT: &str = "reasoning_effort";

/// Works in a thread with [`STACK_BYTES`]; in this one where the system gives none.
fn on_a_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let (mut work, mut done) = (Some(work), None);
    thread::scope(|scope| {
        let run = || done = work.take().map(|work| work());
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run);
        if let Ok(thread) = thread {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
    done.or_else(|| work.map(|work| work())).expect("it is done here or there")
}

/// The chat template of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    has_tool_use: bool,
    takes_tools: bool,
    dialect: Option<&'static Dialect>,
    /// `bos_token`, `eos_token` and the like.
    special_tokens: Vec<(String, String)>,
}

/// A template before it is parsed.
struct Source {
    name: &'static str,
    /// Where it stands.
    path: PathBuf,
    text: String,
}

/// What to render.
#[derive(Clone, Copy, Debug)]
pub struct RenderRequest<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// JSON schemas of the tools the model may call.
    pub tools: &'a [serde_json::Value],
    /// By the ids of calls, their arguments as the model wrote them, which take the place of what the
    /// template makes of the same arguments.
    pub written: Option<&'a HashMap<String, String>>,
    /// Whether to end with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether the model shall think first, for templates that call it so or `thinking`; `None` leaves it
    /// to them.
    pub enable_thinking: Option<bool>,
    /// Further variables that this template knows, such as `reasoning_effort`.
    pub variables: Option<&'a Map<String, serde_json::Value>>,
    /// What `strftime_now` tells the time by, in UTC. A template that mentions the date makes
    /// prompts of different days differ, so the caller decides.
    pub now: SystemTime,
}

impl<'a> RenderRequest<'a> {
    /// A plain conversation, waiting for an answer.
    pub fn new(messages: &'a [Message]) -> RenderRequest<'a> {
        RenderRequest {
            messages,
            tools: &[],
            written: None,
            add_generation_prompt: true,
            enable_thinking: None,
            variables: None,
            now: SystemTime::now(),
        }
    }
}

impl ChatTemplate {
    /// Opens the template in `dir`: `chat_template.jinja`, with `additional_chat_templates/tool_use.jinja` for
    /// conversations with tools, or the `chat_template` of `tokenizer_config.json`, which either file
    /// replaces. A base model has none of them.
    ///
    /// # Errors
    /// If a file cannot be read or parsed, or there is a template for tools alone.
    pub fn open(dir: &Path) -> Result<Option<ChatTemplate>, TextError> {
        let jinja_path = dir.join("chat_template.jinja");
        let config_path = dir.join("tokenizer_config.json");
        let tools_path = dir.join(ADDITIONAL).join(format!("{TOOL_USE}.jinja"));
        let config = files::read_tokenizer_config(dir)?;
        let of_config = |(name, text)| Source { name, path: config_path.clone(), text };
        let tools = files::read_optional(&tools_path)?;
        let tools = tools.map(|text| Source { name: TOOL_USE, path: tools_path, text });
        let sources = match files::read_optional(&jinja_path)? {
            Some(text) => {
                let default = Source { name: DEFAULT, path: jinja_path, text };
                [default].into_iter().chain(tools).collect()
            }
            None if tools.is_some() => {
                return Err(TextError::NoDefaultTemplate { path: dir.join(ADDITIONAL), count: 1 });
            }
            None => match &config["chat_template"] {
                serde_json::Value::String(text) => vec![of_config((DEFAULT, text.clone()))],
                serde_json::Value::Array(list) => {
                    named_templates(list, &config_path)?.into_iter().map(of_config).collect()
                }
                _ => return Ok(None),
            },
        };
        ChatTemplate::new(sources, special_tokens(&config)).map(Some)
    }

    /// The template in the metadata of `path`. A base model has none.
    ///
    /// # Errors
    /// If there are templates but no default one, or one does not parse.
    pub fn from_vocabulary(
        vocabulary: &Vocabulary,
        path: &Path,
    ) -> Result<Option<ChatTemplate>, TextError> {
        let named = |name: &'static str| {
            let (_, text) = vocabulary.chat_templates.iter().find(|(own, _)| own == name)?;
            Some((name, text.clone()))
        };
        let count = vocabulary.chat_templates.len();
        let default = match &vocabulary.chat_template {
            Some(text) => (DEFAULT, text.clone()),
            None if count == 0 => return Ok(None),
            None => named(DEFAULT)
                .ok_or_else(|| TextError::NoDefaultTemplate { path: path.to_owned(), count })?,
        };
        let source = |(name, text)| Source { name, path: path.to_owned(), text };
        let sources = [Some(default), named(TOOL_USE)].into_iter().flatten().map(source).collect();
        let special = vocabulary.special_tokens().into_iter();
        let special = special.map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        ChatTemplate::new(sources, special).map(Some)
    }

    fn new(
        sources: Vec<Source>,
        special_tokens: Vec<(String, String)>,
    ) -> Result<ChatTemplate, TextError> {
        if let Some(long) = sources.iter().find(|source| source.text.len() > BYTES_MAX) {
            let why = format!("it is longer than {BYTES_MAX} bytes");
            let source = minijinja::Error::new(ErrorKind::SyntaxError, why);
            return Err(TextError::TemplateSyntax { path: long.path.clone(), source });
        }
        on_a_large_stack(|| Self::parse(sources, special_tokens))
    }

    fn parse(
        mut sources: Vec<Source>,
        special_tokens: Vec<(String, String)>,
    ) -> Result<ChatTemplate, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the delimiters are the usual ones"));
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        python::install(&mut environment);
        for source in &mut sources {
            source.text = source::with_line_feeds(std::mem::take(&mut source.text));
        }
        let has_tool_use = sources.iter().any(|source| source.name == TOOL_USE);
        let dialect = sources.iter().rev().find_map(|source| Dialect::of_template(&source.text));
        let mut takes_tools = has_tool_use;
        for Source { name, path, text } in sources {
            let syntax = |source| TextError::TemplateSyntax { path: path.clone(), source };
            let text = source::without_generation_tags(&text);
            environment.add_template_owned(name, text).map_err(syntax)?;
            let template = environment.get_template(name).map_err(syntax)?;
            takes_tools |= template.undeclared_variables(false).contains("tools");
        }
        Ok(ChatTemplate { environment, has_tool_use, takes_tools, dialect, special_tokens })
    }

    /// Whether it tells the model of tools.
    pub fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    /// How the model writes its calls, if that is known.
    pub fn dialect(&self) -> Option<&'static Dialect> {
        self.dialect
    }

    /// Whether a system message behind others stands where it was said; some templates refuse it,
    /// move it to the front or leave it out.
    pub fn keeps_system_in_place(&self) -> bool {
        let said = [("user", "probe-1"), ("system", "probe-2"), ("assistant", "probe-3")];
        let messages = said.map(|(role, text)| Message::new(role, text));
        let Ok(rendered) = self.render(&RenderRequest::new(&messages)) else { return false };
        let places = said.map(|(_, text)| rendered.find(text));
        places.iter().all(Option::is_some) && places.is_sorted()
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// [`TextError::Refused`] with the template's own words if it refuses the conversation,
    /// [`TextError::Render`] if it fails.
    pub fn render(&self, request: &RenderRequest<'_>) -> Result<String, TextError> {
        match self.render_written(request) {
            Some(text) => Ok(text),
            None => self.render_prepared(request, request.messages.to_vec()),
        }
    }

    /// Renders with arguments as they were written; nothing if that is not possible here.
    fn render_written(&self, request: &RenderRequest<'_>) -> Option<String> {
        // By the ids that the client knows.
        let mut marked = written::mark(request.messages, request.written?)?;
        let messages = std::mem::take(&mut marked.messages);
        marked.put(self.render_prepared(request, messages).ok()?, self.dialect?)
    }

    /// Renders messages as the dialect wants them.
    fn render_prepared(
        &self,
        request: &RenderRequest<'_>,
        mut messages: Vec<Message>,
    ) -> Result<String, TextError> {
        self.dialect.iter().for_each(|dialect| dialect.prepare(&mut messages));
        self.render_calls(&RenderRequest { messages: &messages, ..*request })
    }

    /// Renders with arguments as objects, or as text if the template wants that.
    fn render_calls(&self, request: &RenderRequest<'_>) -> Result<String, TextError> {
        let failure = match self.render_once(request) {
            Err(failure @ TextError::Render { .. }) => failure,
            result => return result,
        };
        let mut messages = request.messages.to_vec();
        if !messages.iter_mut().any(Message::write_tool_arguments) {
            return Err(failure);
        }
        let messages = RenderRequest { messages: &messages, ..*request };
        self.render_once(&messages).map_err(|_| failure)
    }

    fn render_once(&self, request: &RenderRequest<'_>) -> Result<String, TextError> {
        let with_tools = !request.tools.is_empty();
        let name = if with_tools && self.has_tool_use { TOOL_USE } else { DEFAULT };
        let template =
            self.environment.get_template(name).map_err(|source| TextError::Render { source })?;
        template.render(self.variables(request)).map_err(|source| {
            match RaisedException::find(&source) {
                Some(raised) => TextError::Refused { source: raised.clone() },
                None => TextError::Render { source },
            }
        })
    }

    /// The template's variables, as `transformers` passes them: no tools are `None`.
    fn variables(&self, request: &RenderRequest<'_>) -> Value {
        let now = request.now;
        let strftime_now = move |format: &str| strftime::format(format, now);
        let tools = (!request.tools.is_empty()).then(|| Value::from(Serde(request.tools)));
        let messages: Vec<_> = request.messages.iter().map(Message::for_template).collect();
        let own = [
            ("messages", Value::from(Serde(messages))),
            ("tools", tools.unwrap_or(Value::from(()))),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(request.add_generation_prompt)),
            ("strftime_now", Value::from_function(strftime_now)),
        ];
        let thinking = request.enable_thinking.into_iter();
        let thinking = thinking.flat_map(|on| THINKING_NAMES.map(|name| (name, Value::from(on))));
        let special = self.special_tokens.iter();
        let further = request.variables.into_iter().flatten();
        let further = further.map(|(name, value)| {
            (name.as_str(), self.effort(name, value).unwrap_or_else(|| Value::from(Serde(value))))
        });
        Value::from_pairs(
            special
                .map(|(name, text)| (name.as_str(), Value::from(text.as_str())))
                .chain(own)
                .chain(thinking)
                .chain(further),
        )
    }

    /// An effort in a word that the model knows, if it has another one.
    fn effort(&self, name: &str, word: &serde_json::Value) -> Option<Value> {
        let efforts = self.dialect.filter(|_| name == EFFORT)?.channels()?.efforts;
        let (_, known) = efforts.iter().find(|(unknown, _)| word == unknown)?;
        Some(Value::from(*known))
    }
}

/// `[{"name": "default", "template": "…"}, …]`
fn named_templates(
    list: &[serde_json::Value],
    path: &Path,
) -> Result<Vec<(&'static str, String)>, TextError> {
    let named = |name: &'static str| {
        let entry = list.iter().find(|entry| entry["name"] == name)?;
        Some((name, entry["template"].as_str()?.to_owned()))
    };
    let default = named(DEFAULT)
        .ok_or_else(|| TextError::NoDefaultTemplate { path: path.to_owned(), count: list.len() })?;
    Ok([Some(default), named(TOOL_USE)].into_iter().flatten().collect())
}

/// Every `…_token` of the configuration: a string, or an added token with its `content`.
fn special_tokens(config: &serde_json::Value) -> Vec<(String, String)> {
    let entries = config.as_object().into_iter().flatten();
    entries
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| {
            let text = value.as_str().or_else(|| value["content"].as_str())?;
            Some((name.clone(), text.to_owned()))
        })
        .collect()
}
