//! Functions in namespaces, in which the Responses API has those of a client's MCP servers. A model knows
//! functions by one name, so it is told of each under a name made of both.

use std::collections::HashSet;

use fm_text::tools::valid_name;
use serde_json::Value;

use super::{PARAMETERS, TOOLS_MAX, function_of, kind_of, left_out, name_of};
use crate::{
    fields::Fields,
    problem::{Problem, Wrong},
};

/// Between namespace and name, where the namespace does not end so.
const JOINT: &str = "__";

const LONG: &str = "its name and that of its namespace may have 126 letters together";

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namespaces {
    members: Vec<Member>,
    /// What models call functions of a request.
    taken: HashSet<String>,
}

#[derive(Clone, Debug)]
struct Member {
    /// What the model calls it.
    called: String,
    namespace: String,
    name: String,
}

impl Namespaces {
    /// Those of a request that has these tools beside them.
    pub(crate) fn beside(tools: Option<&Value>) -> Self {
        let tools = tools.and_then(Value::as_array).into_iter().flatten();
        let functions = tools.filter(|tool| tool["type"] == "function");
        let taken = functions.filter_map(|tool| tool["name"].as_str().map(str::to_owned));
        Self { members: Vec::new(), taken: taken.collect() }
    }

    /// Takes a namespace apart into functions, each with whether it is strict. Kinds of tools that are left
    /// out go to `without`.
    pub(crate) fn take(
        &mut self,
        mut fields: Fields,
        without: &mut Vec<&'static str>,
    ) -> Result<Vec<(Value, bool)>, Problem> {
        let namespace = name_of(&mut fields)?;
        let list = fields.list("tools", TOOLS_MAX)?.unwrap_or_default();
        let mut functions = Vec::new();
        for (at, tool) in list.into_iter().enumerate() {
            let field = format!("{}[{at}]", fields.path_of("tools"));
            let mut tool = Fields::of(tool, field.as_str())?;
            match kind_of(&mut tool)?.as_str() {
                "function" => {
                    let (mut function, strict) = function_of(tool, PARAMETERS)?;
                    let name = &mut function["function"]["name"];
                    let called = self.add(&namespace, name.as_str().unwrap_or_default());
                    *name = called.ok_or_else(|| Wrong::Rule(LONG).at(field))?.into();
                    functions.push((function, strict));
                }
                kind => without.push(left_out(kind, &field)?),
            }
        }
        Ok(functions)
    }

    /// Gives a function a name that no other one of the request has, if there is one.
    fn add(&mut self, namespace: &str, name: &str) -> Option<String> {
        let mut called = joined(namespace, name);
        while self.taken.contains(&called) {
            called.push('_');
        }
        if !valid_name(&called) {
            return None;
        }
        self.taken.insert(called.clone());
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.members.push(Member { called: called.clone(), namespace, name });
        Some(called)
    }

    /// What the model calls the function that a call or a choice names, or would if there were one.
    pub(crate) fn called_of(&self, named: &Value) -> Option<String> {
        let name = named["name"].as_str()?;
        let Some(namespace) = named["namespace"].as_str() else { return Some(name.to_owned()) };
        let own = |member: &&Member| member.namespace == namespace && member.name == name;
        let member = self.members.iter().find(own);
        Some(member.map_or_else(|| joined(namespace, name), |member| member.called.clone()))
    }

    /// Namespace and name of what the model calls, if it is in one.
    pub(crate) fn place_of(&self, called: &str) -> Option<(String, String)> {
        let member = self.members.iter().find(|member| member.called == called)?;
        Some((member.namespace.clone(), member.name.clone()))
    }
}

fn joined(namespace: &str, name: &str) -> String {
    let joint = if namespace.ends_with(JOINT) { "" } else { JOINT };
    [namespace, joint, name].concat()
}
