//! What a request says about tools, in the one shape that templates know: OpenAI's.

mod namespaces;
mod results;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use fm_engine::grammar::{DEPTH_MAX, depth};
use fm_text::{
    ChatTemplate, Dialect, Message,
    tools::{Callable, valid_name},
};

pub(crate) use self::{
    namespaces::Namespaces,
    results::{call_one_by_one, place_results},
};
use crate::{
    fields::Fields,
    problem::{Problem, Wrong},
};

/// Tools of a request.
const TOOLS_MAX: usize = 512;

/// Bytes of all of them: what they say is part of every prompt.
pub(crate) const BYTES_MAX: usize = 2 << 20;

/// Types of the Responses API that agents send with every request and a model can do without: whoever
/// serves the original runs them, or the model writes something else than JSON for them.
const LEFT_OUT: [&str; 8] = [
    "custom",
    "image_generation",
    "local_shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
];

/// The same of Anthropic's interface: whoever serves the original runs them.
const OF_ANTHROPIC: [&str; 5] =
    ["advisor", "code_execution", "tool_search_tool", "web_fetch", "web_search"];

/// What the schema of a function is called: in one interface or another, and in lists of MCP.
const SCHEMAS: [&str; 3] = ["parameters", "input_schema", "inputSchema"];

/// What it is called in an interface, and what is said of its other names there.
type Schema = (&'static str, &'static str);

const PARAMETERS: Schema = ("parameters", "parameters is meant");

const INPUT_SCHEMA: Schema = ("input_schema", "input_schema is meant");

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`
    pub(crate) list: Vec<Value>,
    pub(crate) choice: Choice,
    /// Which of them have arguments that are held to their schemas.
    pub(crate) strict: Vec<bool>,
    /// Calls of an answer, if there is a limit.
    pub(crate) calls_max: Option<usize>,
    pub(crate) namespaces: Namespaces,
    /// Types of tools that the model is not told of.
    pub(crate) left_out: Vec<&'static str>,
}

/// Whether there shall be a call.
#[derive(Debug, Default, PartialEq)]
pub(crate) enum Choice {
    /// As the model likes.
    #[default]
    Auto,
    None,
    Required,
    /// Of this function.
    Named(String),
}

impl Choice {
    /// The word that both of OpenAI's interfaces have for it; `words` says which there are.
    fn of_word(word: &str, words: &'static str) -> Result<Self, Problem> {
        match word {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            // Mistral's word for it.
            "required" | "any" => Ok(Self::Required),
            _ => Err(Wrong::Kind(words).at("tool_choice")),
        }
    }

    /// What the answer begins with if it shall be a call.
    pub(crate) fn opening(&self, dialect: Option<&'static Dialect>) -> String {
        let name = match self {
            Self::Auto | Self::None => return String::new(),
            Self::Required => None,
            Self::Named(name) => Some(name.as_str()),
        };
        dialect.map_or_else(String::new, |dialect| dialect.opening(name))
    }

    /// Whether the answer begins with a call.
    pub(crate) fn is_forced(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_))
    }
}

impl Tools {
    /// How the model writes its calls, if it can be told of these tools.
    pub(crate) fn dialect(
        &self,
        template: &ChatTemplate,
    ) -> Result<Option<&'static Dialect>, Problem> {
        let dialect = template.dialect();
        match self.list.is_empty() {
            false if !template.takes_tools() => Err(Problem::NoTools),
            false if dialect.is_none() && self.choice != Choice::None => Err(Problem::NoDialect),
            _ => Ok(dialect),
        }
    }

    /// Takes `tools`, `tool_choice` and `parallel_tool_calls` of OpenAI's interface.
    pub(crate) fn take_openai(fields: &mut Fields) -> Result<Self, Problem> {
        let (list, strict) = each(fields, |tool, field| {
            let mut tool = Fields::of(tool, field)?;
            if kind_of(&mut tool)? != "function" {
                return Err(Wrong::Unsupported("tools other than functions").at(field));
            }
            let field = tool.path_of("function");
            let function = tool.take("function").ok_or_else(|| Wrong::Missing.at(&field))?;
            let function = Fields::of(function, field)?;
            let schema = function.peek(PARAMETERS.0);
            refuse_elsewhere(&tool, &SCHEMAS, (schema, "function.parameters is meant"))?;
            let strict = function.peek("strict");
            refuse_elsewhere(&tool, &["strict"], (strict, "function.strict is meant"))?;
            Ok([function_of(function, PARAMETERS)?])
        })?;
        let namespaces = Namespaces::default();
        let (chosen, allowed) = allowed(fields.take("tool_choice"), "allowed_tools", &namespaces)?;
        let choice = match chosen {
            None => Choice::Auto,
            Some(Value::String(word)) => Choice::of_word(&word, OPENAI_CHOICES)?,
            Some(named) => match (named["type"].as_str(), named["function"]["name"].as_str()) {
                (Some("function"), Some(name)) => Choice::Named(name.to_owned()),
                _ => return Err(Wrong::Kind(OPENAI_CHOICES).at("tool_choice")),
            },
        };
        let calls_max = calls_max(fields)?;
        Self { list, choice, strict, calls_max, ..Self::default() }.only(allowed)?.checked()
    }

    /// Takes the same of the Responses API, where functions have no envelope, but may be in namespaces.
    pub(crate) fn take_responses(fields: &mut Fields) -> Result<Self, Problem> {
        let mut namespaces = Namespaces::beside(fields.peek("tools"));
        let mut without = Vec::new();
        let (list, strict) = each(fields, |tool, field| {
            let mut tool = Fields::of(tool, field)?;
            match kind_of(&mut tool)?.as_str() {
                "function" => Ok(vec![function_of(tool, PARAMETERS)?]),
                "namespace" => namespaces.take(tool, &mut without),
                kind => {
                    without.push(left_out(kind, field)?);
                    Ok(Vec::new())
                }
            }
        })?;
        without.sort_unstable();
        without.dedup();
        let (choice, allowed) = allowed(fields.take("tool_choice"), "", &namespaces)?;
        let choice = match choice.as_ref().map(|choice| (choice, choice["type"].as_str())) {
            None => Choice::Auto,
            Some((Value::String(word), _)) => Choice::of_word(word, RESPONSES_CHOICES)?,
            Some((named, Some("function"))) => {
                let wrong = || Wrong::Kind(RESPONSES_CHOICES).at("tool_choice");
                Choice::Named(namespaces.called_of(named).ok_or_else(wrong)?)
            }
            Some(_) => return Err(Wrong::Kind(RESPONSES_CHOICES).at("tool_choice")),
        };
        let calls_max = calls_max(fields)?;
        let tools = Self { list, choice, strict, calls_max, namespaces, left_out: without };
        tools.only(allowed)?.checked()
    }

    /// Takes `tools` and `tool_choice` of Anthropic's interface.
    pub(crate) fn take_anthropic(fields: &mut Fields) -> Result<Self, Problem> {
        let mut without = Vec::new();
        let (list, strict) = each(fields, |tool, field| {
            let mut tool = Fields::of(tool, field)?;
            let kind = tool.text("type")?.filter(|kind| kind != "custom");
            let Some(kind) = kind else { return Ok(Some(function_of(tool, INPUT_SCHEMA)?)) };
            // Their types end with the day of their version.
            let own = OF_ANTHROPIC.into_iter().find(|own| kind.starts_with(own));
            without.push(own.ok_or_else(|| {
                let what = "the tools that Anthropic describes (bash, text_editor, memory, computer); \
                            send one with an input_schema";
                Wrong::Unsupported(what).at(field)
            })?);
            Ok(None)
        })?;
        let mut tools = Self { list, strict, left_out: without, ..Self::default() };
        let mut names = HashSet::new();
        if !tools.names().all(|name| names.insert(name)) {
            return Err(Wrong::Rule("tools need names of their own").at("tools"));
        }
        if let Some(choice) = fields.take("tool_choice") {
            let mut choice = Fields::of(choice, "tool_choice")?;
            tools.choice = match choice.text("type")?.as_deref() {
                Some("auto") => Choice::Auto,
                Some("none") => Choice::None,
                Some("any") => Choice::Required,
                Some("tool") => {
                    let name = choice.text("name")?;
                    Choice::Named(name.ok_or_else(|| Wrong::Missing.at("tool_choice.name"))?)
                }
                _ => return Err(Wrong::Kind("one of auto, any, tool, none").at("tool_choice.type")),
            };
            let one = choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
            tools.calls_max = one.then_some(1);
            choice.end(&[])?;
        }
        tools.checked()
    }

    /// Leaves away what may not be called: what the model does not know of, it does not call.
    fn only(mut self, allowed: Option<Vec<String>>) -> Result<Self, Problem> {
        let Some(allowed) = allowed else { return Ok(self) };
        if allowed.iter().any(|name| !self.names().any(|own| own == name)) {
            return Err(Wrong::Rule("there is no tool of a name that is allowed").at("tool_choice"));
        }
        let may = |tool: &Value| allowed.iter().any(|name| tool["function"]["name"] == **name);
        let all = self.list.into_iter().zip(self.strict);
        (self.list, self.strict) = all.filter(|(tool, _)| may(tool)).unzip();
        Ok(self)
    }

    fn checked(self) -> Result<Self, Problem> {
        let wrong = match &self.choice {
            choice if choice.is_forced() && self.list.is_empty() => "there are no tools to call",
            Choice::Named(name) if !self.names().any(|own| own == name) => {
                "there is no tool of this name"
            }
            _ => return Ok(self),
        };
        Err(Wrong::Rule(wrong).at("tool_choice"))
    }

    /// What the model may call. Those that are strict have schemas, and others that are `held` to theirs.
    pub(crate) fn callable(&self, held: impl Fn(&Value) -> bool) -> Vec<Callable<'_>> {
        let is_named = |name: &str| match &self.choice {
            Choice::Named(named) => name == named,
            _ => true,
        };
        let tools = self.list.iter().zip(&self.strict);
        let functions = tools.filter_map(|(tool, strict)| {
            let function = &tool["function"];
            let name = function["name"].as_str().filter(|name| is_named(name))?;
            let can_be_held = |own: &&Value| *strict || own["type"] == "object" && held(own);
            let parameters = Some(&function["parameters"]).filter(can_be_held);
            Some(Callable { name, parameters })
        });
        functions.collect()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.list.iter().filter_map(|tool| tool["function"]["name"].as_str())
    }
}

const OPENAI_CHOICES: &str =
    "auto, none, required or {\"type\": \"function\", \"function\": {\"name\": …}}";

const RESPONSES_CHOICES: &str = "auto, none, required or {\"type\": \"function\", \"name\": …}";

/// Takes `allowed_tools` apart: its mode, and the names. In chat completions they lie in a field of their own.
fn allowed(
    choice: Option<Value>,
    envelope: &str,
    namespaces: &Namespaces,
) -> Result<(Option<Value>, Option<Vec<String>>), Problem> {
    let choice = match choice {
        Some(choice) if choice["type"] == "allowed_tools" => choice,
        other => return Ok((other, None)),
    };
    let inside = if envelope.is_empty() { &choice } else { &choice[envelope] };
    let name = |tool: &Value| {
        let inside = || tool["function"]["name"].as_str().map(str::to_owned);
        namespaces.called_of(tool).or_else(inside)
    };
    let names = inside["tools"].as_array().map(|tools| tools.iter().map(name).collect());
    let wrong = || Wrong::Kind("a mode and a list of functions").at("tool_choice");
    let names: Vec<String> = names.flatten().ok_or_else(wrong)?;
    Ok((Some(inside["mode"].clone()), Some(names)))
}

/// `parallel_tool_calls`.
fn calls_max(fields: &mut Fields) -> Result<Option<usize>, Problem> {
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    Ok((!parallel).then_some(1))
}

fn each<R: IntoIterator<Item = (Value, bool)>>(
    fields: &mut Fields,
    mut read: impl FnMut(Value, &str) -> Result<R, Problem>,
) -> Result<(Vec<Value>, Vec<bool>), Problem> {
    let list = fields.list("tools", TOOLS_MAX)?.unwrap_or_default();
    let (mut tools, mut bytes) = (Vec::new(), 0);
    for (at, tool) in list.into_iter().enumerate() {
        let field = format!("tools[{at}]");
        if depth(&tool) > DEPTH_MAX {
            return Err(
                Wrong::Rule("it has more than 64 lists and objects in each other").at(field)
            );
        }
        for tool in read(tool, &field)? {
            bytes += tool.0.to_string().len();
            tools.push(tool);
        }
        if bytes > BYTES_MAX {
            return Err(Wrong::Rule("all tools together may have 2 MiB").at(field));
        }
        if tools.len() > TOOLS_MAX {
            return Err(Wrong::Many(TOOLS_MAX).at("tools"));
        }
    }
    Ok(tools.into_iter().unzip())
}

/// The `type` of a tool, which OpenAI's have to say.
fn kind_of(tool: &mut Fields) -> Result<String, Problem> {
    tool.text("type")?.ok_or_else(|| Wrong::Missing.at(tool.path_of("type")))
}

/// The type of a tool that the model is not told of.
fn left_out(kind: &str, field: &str) -> Result<&'static str, Problem> {
    let own = LEFT_OUT.into_iter().find(|own| kind == *own);
    own.ok_or_else(|| Wrong::Unsupported("tools other than functions").at(field))
}

/// Refuses what stands where nobody reads it and would change what the model is told, unless `own` says the same.
fn refuse_elsewhere(
    fields: &Fields,
    names: &[&str],
    (own, meant): (Option<&Value>, &'static str),
) -> Result<(), Problem> {
    let says = |name: &&&str| fields.peek(name).is_some_and(|value| *value != false);
    let mut said = names.iter().filter(says);
    match said.find(|name| fields.peek(name) != own) {
        Some(name) => Err(Wrong::Rule(meant).at(fields.path_of(name))),
        None => Ok(()),
    }
}

/// The envelope and its function, and whether it is strict. Fields that templates do not know are left out.
fn function_of(mut fields: Fields, (schema, meant): Schema) -> Result<(Value, bool), Problem> {
    let name = name_of(&mut fields)?;
    refuse_elsewhere(&fields, &SCHEMAS, (fields.peek(schema), meant))?;
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    if let Some(description) = fields.text("description")? {
        function.insert("description".to_owned(), description.into());
    }
    let strict = fields.flag("strict")?;
    // A function without them has none, as in the original.
    let nothing = || Map::from_iter([("additionalProperties".to_owned(), false.into())]);
    let mut parameters = fields.object(schema)?.unwrap_or_else(nothing);
    // Templates go through the properties of every function.
    let kind = parameters.entry("type").or_insert_with(|| "object".into());
    if kind.as_array().is_some_and(|kinds| kinds.contains(&"object".into())) {
        *kind = "object".into();
    } else if strict == Some(true) && *kind != "object" {
        let field = format!("{}.type", fields.path_of(schema));
        return Err(Wrong::Kind("object: arguments have names").at(field));
    }
    parameters.entry("properties").or_insert_with(|| json!({}));
    function.insert("parameters".to_owned(), parameters.into());
    Ok((json!({"type": "function", "function": function}), strict.unwrap_or(false)))
}

fn name_of(fields: &mut Fields) -> Result<String, Problem> {
    let name = fields.text("name")?.ok_or_else(|| Wrong::Missing.at(fields.path_of("name")))?;
    if !valid_name(&name) {
        let letters = "up to 128 letters, digits and characters of _-.:";
        return Err(Wrong::Kind(letters).at(fields.path_of("name")));
    }
    Ok(name)
}

/// The calls of a conversation: ids and functions.
pub(crate) fn calls(messages: &[Message]) -> impl Iterator<Item = (&str, &Value)> {
    let lists = messages.iter().filter_map(|message| message.tool_calls.as_ref()?.as_array());
    lists.flatten().filter_map(|call| Some((call["id"].as_str()?, &call["function"])))
}
