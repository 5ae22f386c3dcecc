//! What the schema of a function says of its parameters, for whoever writes them one by one between tags.
//!
//! A schema may say it in several places: beside `$ref`, in what that names, in the branches of `allOf`.
//! What it says of all parameters together, and not of one of them, cannot be kept to there.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde_json::{Value, json};

use super::tagged::Tags;

/// Schemas that are looked at for one function, those of all parameters together, and how deep in each other. Clients
/// write the schemas, in which each may name all others.
const LOOKS_MAX: usize = 4096;
const PARTS_MAX: usize = 64;
const DEPTH_MAX: usize = 128;

/// Bytes of the texts that are listed for it: a grammar with more is not compiled.
const TEXT_BYTES_MAX: usize = super::grammar::GRAMMAR_BYTES_MAX;

/// What a schema may ask of all parameters together.
const TOGETHER: [&str; 16] = [
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "enum",
    "const",
    "patternProperties",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];

/// Why calls in tags cannot be held to a schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unkept {
    /// It says something of all parameters together.
    #[error("this model writes parameters one by one and cannot keep to {keyword} of all of them")]
    Together {
        /// The keyword.
        keyword: String,
    },
    /// It names something that is not there.
    #[error("there is no {reference}")]
    Reference {
        /// What it names.
        reference: String,
    },
    /// No object has what it requires.
    #[error("{key:?} is required, and not allowed")]
    Required {
        /// The parameter.
        key: String,
    },
    /// A parameter has a name that cannot be told from the tags around it.
    #[error("this model cannot write a parameter named {key:?}")]
    Key {
        /// The name.
        key: String,
    },
    /// A value cannot be told from the tags and the white space around it, or there is none.
    #[error("this model cannot write the values that {key:?} may have")]
    Value {
        /// The parameter.
        key: String,
    },
    /// It would take too long to read.
    #[error("it is too complex: too many schemas, or strings to choose from, in each other")]
    TooMuch,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Parameters<'s> {
    pub(super) list: Vec<Parameter<'s>>,
    /// What others are, if there may be others.
    pub(super) others: Option<Parameter<'s>>,
}

#[derive(Debug)]
pub(super) struct Parameter<'s> {
    pub(super) key: &'s str,
    pub(super) required: bool,
    /// All of them hold.
    schemas: Vec<&'s Value>,
    /// The strings that it may be; any if there is no list.
    pub(super) texts: Option<Vec<&'s str>>,
}

impl<'s> Parameters<'s> {
    /// Those of a schema.
    pub(super) fn of(root: &'s Value, tags: &Tags) -> Result<Self, Unkept> {
        let mut look = Look::new(root);
        let parts = look.parts()?;
        let closed: Vec<_> =
            parts.iter().filter(|part| part["additionalProperties"] == false).collect();
        let others: Vec<&Value> =
            parts.iter().filter_map(|part| part.get("additionalProperties")).collect();
        let schemas: Vec<&Value> =
            others.iter().copied().filter(|schema| schema.is_object()).collect();
        let mut list = listed(&parts, &schemas);
        for own in &mut list {
            if closed.iter().any(|part| part["properties"].get(own.key).is_none()) {
                return Err(Unkept::Required { key: own.key.to_owned() });
            }
            own.check_key(tags)?;
            own.list_texts(&mut look, tags)?;
        }
        let open = !others.is_empty() && closed.is_empty();
        let mut others =
            open.then_some(Parameter { key: "", required: false, schemas, texts: None });
        others.iter_mut().try_for_each(|others| others.list_texts(&mut look, tags))?;
        let parameters = Self { list, others };
        parameters.check_counts(&parts)?;
        Ok(parameters)
    }

    /// `minProperties` and `maxProperties` are kept to where nothing else could be written.
    fn check_counts(&self, parts: &[&Value]) -> Result<(), Unkept> {
        let required = self.list.iter().filter(|own| own.required).count() as u64;
        let most = if self.others.is_some() { u64::MAX } else { self.list.len() as u64 };
        let breaks = |keyword: &'static str, idle: &dyn Fn(u64) -> bool| {
            let counts = parts.iter().filter_map(|part| part.get(keyword));
            let broken = counts.map(Value::as_u64).any(|count| !count.is_some_and(idle));
            broken.then(|| Unkept::Together { keyword: keyword.to_owned() })
        };
        let broken = breaks("minProperties", &|least| least <= required)
            .or_else(|| breaks("maxProperties", &|max| max >= most));
        broken.map_or(Ok(()), Err)
    }
}

/// The parameters that the parts of a schema name, in their order; those that it only requires are as `others` are.
fn listed<'s>(parts: &[&'s Value], others: &[&'s Value]) -> Vec<Parameter<'s>> {
    let mut list = Vec::new();
    let mut places = HashMap::new();
    let mut place = |list: &mut Vec<Parameter<'s>>, key: &'s str| {
        let at = *places.entry(key).or_insert(list.len());
        if at == list.len() {
            list.push(Parameter { key, required: false, schemas: Vec::new(), texts: None });
        }
        at
    };
    for (key, schema) in parts.iter().filter_map(|part| part["properties"].as_object()).flatten() {
        let at = place(&mut list, key);
        list[at].schemas.push(schema);
    }
    let named = list.len();
    for key in parts.iter().filter_map(|part| part["required"].as_array()).flatten() {
        let Some(key) = key.as_str() else { continue };
        let at = place(&mut list, key);
        list[at].required = true;
    }
    list[named..].iter_mut().for_each(|own| own.schemas = others.to_vec());
    list
}

impl Parameter<'_> {
    /// What its values are.
    pub(super) fn schema(&self) -> Cow<'_, Value> {
        match self.schemas.as_slice() {
            [] => Cow::Owned(json!({})),
            [one] => Cow::Borrowed(*one),
            all => Cow::Owned(json!({"allOf": all})),
        }
    }

    fn check_key(&self, tags: &Tags) -> Result<(), Unkept> {
        let key = self.key;
        let told = key == key.trim() && !key.contains('\n') && !key.contains(tags.key.1);
        if told { Ok(()) } else { Err(Unkept::Key { key: key.to_owned() }) }
    }
}

impl<'s> Parameter<'s> {
    fn list_texts(&mut self, look: &mut Look<'s>, tags: &Tags) -> Result<(), Unkept> {
        for schema in &self.schemas {
            let own = look.texts(schema, &mut Vec::new())?;
            self.texts = both(self.texts.take(), own);
        }
        let told = |text: &&str| *text.trim() == **text && !text.contains(tags.value.1);
        match &self.texts {
            Some(texts) if !texts.iter().all(told) => {
                Err(Unkept::Value { key: self.key.to_owned() })
            }
            _ => Ok(()),
        }
    }
}

/// What a reader of one schema may still look at.
struct Look<'s> {
    root: &'s Value,
    schemas: usize,
    text_bytes: usize,
    depth: usize,
}

impl<'s> Look<'s> {
    fn new(root: &'s Value) -> Self {
        Self { root, schemas: LOOKS_MAX, text_bytes: TEXT_BYTES_MAX, depth: DEPTH_MAX }
    }

    fn schema(&mut self) -> Result<(), Unkept> {
        take(&mut self.schemas, 1)
    }

    fn target(&self, reference: &Value) -> Result<&'s Value, Unkept> {
        let pointer = reference.as_str().and_then(|text| text.strip_prefix('#'));
        let missing = || Unkept::Reference { reference: reference.to_string() };
        pointer.and_then(|pointer| self.root.pointer(pointer)).ok_or_else(missing)
    }

    /// The schemas that all hold for the parameters together.
    fn parts(&mut self) -> Result<Vec<&'s Value>, Unkept> {
        let (mut pending, mut parts) = (vec![self.root], Vec::new());
        let mut followed = HashSet::new();
        while let Some(schema) = pending.pop() {
            self.schema()?;
            parts.push(schema);
            if parts.len() > PARTS_MAX {
                return Err(Unkept::TooMuch);
            }
            let mut more = Vec::new();
            for (keyword, value) in schema.as_object().into_iter().flatten() {
                let branches = value.as_array().map_or(&[][..], Vec::as_slice);
                match (keyword.as_str(), branches) {
                    ("$ref", _) if followed.insert(value.as_str()) => {
                        more.push(self.target(value)?);
                    }
                    ("allOf", branches) | ("anyOf" | "oneOf", branches @ [_]) => {
                        more.extend(branches);
                    }
                    ("propertyNames", _) if *value == json!({"type": "string"}) => {}
                    ("type", _) if !has_type(value, "object") => {
                        return Err(Unkept::Together { keyword: keyword.clone() });
                    }
                    (word, _) if TOGETHER.contains(&word) => {
                        return Err(Unkept::Together { keyword: keyword.clone() });
                    }
                    _ => {}
                }
            }
            more.reverse();
            pending.extend(more);
        }
        Ok(parts)
    }

    /// The strings that a value may be; any if there is no list. `within` are the references that lead here.
    fn texts(
        &mut self,
        schema: &'s Value,
        within: &mut Vec<&'s str>,
    ) -> Result<Option<Vec<&'s str>>, Unkept> {
        self.schema()?;
        take(&mut self.depth, 1)?;
        let mut texts = self.own_texts(schema)?;
        if let Some(reference) = schema["$ref"].as_str().filter(|text| !within.contains(text)) {
            let target = self.target(&schema["$ref"])?;
            within.push(reference);
            texts = both(texts, self.texts(target, within)?);
            within.pop();
        }
        for branch in schema["allOf"].as_array().into_iter().flatten() {
            texts = both(texts, self.texts(branch, within)?);
        }
        for branches in ["anyOf", "oneOf"].iter().filter_map(|word| schema[word].as_array()) {
            let mut any = Some(Vec::new());
            for branch in branches {
                let own = self.texts(branch, within)?;
                any = any.zip(own).map(|(mut any, own)| {
                    any.extend(own);
                    any
                });
            }
            texts = both(texts, any);
        }
        self.depth += 1;
        Ok(texts)
    }

    /// What a schema says itself.
    fn own_texts(&mut self, schema: &'s Value) -> Result<Option<Vec<&'s str>>, Unkept> {
        let mut texts = None;
        if *schema == false || schema.get("type").is_some_and(|own| !has_type(own, "string")) {
            texts = Some(Vec::new());
        }
        let list = schema["enum"].as_array().map(Vec::as_slice);
        for list in list.into_iter().chain(schema.get("const").map(std::slice::from_ref)) {
            let list: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
            take(&mut self.text_bytes, list.iter().map(|text| text.len() + 1).sum())?;
            texts = both(texts, Some(list));
        }
        Ok(texts)
    }
}

fn take(left: &mut usize, count: usize) -> Result<(), Unkept> {
    *left = left.checked_sub(count).ok_or(Unkept::TooMuch)?;
    Ok(())
}

fn has_type(types: &Value, name: &str) -> bool {
    types == name || types.as_array().is_some_and(|types| types.iter().any(|own| own == name))
}

/// The texts that are in both lists, each once.
fn both<'s>(one: Option<Vec<&'s str>>, other: Option<Vec<&'s str>>) -> Option<Vec<&'s str>> {
    let (mut list, allowed) = match (one, other) {
        (None, other) => return other,
        (one, None) => return one,
        (Some(one), Some(other)) => (one, other.into_iter().collect::<HashSet<_>>()),
    };
    let mut seen = HashSet::new();
    list.retain(|text| allowed.contains(text) && seen.insert(*text));
    Some(list)
}

/// Everything that a schema says of a parameter anywhere: for whoever reads what was written, and has no choice.
pub(super) fn mentioned(root: &Value) -> Vec<(&str, &Value)> {
    let (mut pending, mut found) = (vec![root], Vec::new());
    let (mut look, mut followed) = (Look::new(root), HashSet::new());
    while let Some(schema) = pending.pop() {
        if look.schema().is_err() {
            return Vec::new();
        }
        found.extend(
            schema["properties"].as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v)),
        );
        let target = schema["$ref"].as_str().filter(|text| followed.insert(*text));
        pending.extend(target.and_then(|_| look.target(&schema["$ref"]).ok()));
        let choices = super::definitions::CHOICES.iter().filter_map(|word| schema[word].as_array());
        pending.extend(choices.flatten());
    }
    found
}
