//! Calls between marks that are tokens of their own: a name, and arguments that are an object.

use super::{
    Definitions,
    object::Arguments,
    parts::Parts,
    reader::{Read, Step, valid_name},
    scan::{Is, one_of, spaces, undecided},
};

/// What fences arguments in some templates.
const FENCE: &str = "```";

/// The marks of such a dialect.
#[derive(Debug)]
pub(super) struct Marks {
    /// Before a call.
    pub(super) call: &'static str,
    /// Between what names it and its arguments.
    pub(super) named: &'static str,
    /// Behind it.
    pub(super) end: &'static str,
    /// Behind the last one.
    pub(super) close: &'static str,
    /// The function, by what stands before `named` and what stands behind it.
    pub(super) name: for<'t> fn(&'t str, &'t str) -> &'t str,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Marked {
    marks: &'static Marks,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Before a call or the end.
    Head,
    Name,
    Arguments(Arguments),
    /// Behind the arguments.
    Ended,
    Tail,
}

impl Marked {
    pub(super) fn new(marks: &'static Marks) -> Self {
        Self { marks, place: Place::Head }
    }

    /// Name of a call, and where its arguments begin.
    fn name<'t>(&self, text: &'t str) -> Result<(&'t str, usize), Step> {
        let named = self.marks.named;
        let end = text.find(named);
        let first = text[..end.unwrap_or_else(|| undecided(text, &[named]))].trim_end();
        if !first.is_empty() && !valid_name(first) {
            return Err(Step::Broken(0));
        }
        let Some(behind) = end.map(|end| end + named.len()) else { return Err(Step::More) };
        let Some(start) = text[behind..].find('{').map(|at| behind + at) else {
            let is_over = text[behind..].contains(self.marks.end);
            return Err(if is_over { Step::Broken(0) } else { Step::More });
        };
        let second = text[behind..start].trim();
        let second = second.strip_suffix("json").unwrap_or(second);
        let second = second.strip_suffix(FENCE).unwrap_or(second).trim();
        let name = (self.marks.name)(first, second);
        let is_call = second.is_empty() || name == second;
        if is_call && valid_name(name) { Ok((name, start)) } else { Err(Step::Broken(0)) }
    }
}

impl Read for Marked {
    fn read(&mut self, rest: &str, last: bool, _: &Definitions, parts: &mut Parts) -> Step {
        if !matches!(self.place, Place::Arguments(_) | Place::Ended) && spaces(rest) > 0 {
            return Step::Took(spaces(rest));
        }
        let Marks { call, end, close, .. } = *self.marks;
        match &mut self.place {
            Place::Head => match one_of(rest, &[call, close], last) {
                Ok(mark) if mark == close => Step::Close(close.len()),
                Ok(_) => {
                    self.place = Place::Name;
                    Step::Took(call.len())
                }
                Err(Is::Maybe) => Step::More,
                Err(_) => Step::Close(0),
            },
            Place::Name => match self.name(rest) {
                Err(step) => step,
                Ok((name, start)) => {
                    parts.begin(name);
                    self.place = Place::Arguments(Arguments::default());
                    Step::Took(start)
                }
            },
            Place::Arguments(arguments) => {
                let found = arguments.read(rest, parts);
                found.step(|| self.place = Place::Ended)
            }
            Place::Ended => {
                self.place = Place::Tail;
                Step::Call(0)
            }
            Place::Tail => match one_of(rest, &[FENCE, end], last) {
                Ok(FENCE) => Step::Took(FENCE.len()),
                Ok(_) => {
                    self.place = Place::Head;
                    Step::Took(end.len())
                }
                Err(Is::Maybe) => Step::More,
                Err(_) => Step::Close(0),
            },
        }
    }
}
