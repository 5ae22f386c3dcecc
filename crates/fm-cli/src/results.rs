//! Where results go: not over what they are made of.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::ArgMatches;

use crate::flags::Usage;

/// The file that a flag names, if it is there, for something that is made of what `read` names and of a model, which
/// is left out where what is there is looked at before it is written over.
///
/// # Errors
/// If it is one of these, or `-`.
pub(crate) fn file<'a>(
    matches: &'a ArgMatches,
    flag: &str,
    (model, read): (Option<&Path>, &[Option<&PathBuf>]),
) -> Result<Option<&'a PathBuf>, Usage> {
    let Some(path) = matches.get_one::<PathBuf>(flag) else { return Ok(None) };
    let shown = path.display();
    if path.as_os_str() == "-" {
        let words = "it takes a file, and stdout is none; write ./- for a file of this name";
        return Err(Usage(format!("--{flag} -: {words}")));
    }
    if read.iter().flatten().any(|other| is_same(path, other)) {
        return Err(Usage(format!("--{flag} {shown}: this is what is read; choose another name")));
    }
    if model.is_some_and(|model| path.exists() && is_of(path, model)) {
        return Err(Usage(format!("--{flag} {shown}: this is the model's; choose another name")));
    }
    Ok(Some(path))
}

/// Whether a file is the model, one of its parts, or in its directory: by its name, or by what it is a link to, as the
/// files of the hub's models are.
fn is_of(path: &Path, model: &Path) -> bool {
    let home = if model.is_dir() { Some(model) } else { model.parent() };
    let Some(home) = home.and_then(whole) else { return false };
    let lies = |path: &Path| whole(path).is_some_and(|path| path.starts_with(&home));
    if model.is_dir() {
        let mut entries = fs::read_dir(model).into_iter().flatten().flatten();
        return lies(path)
            || path.parent().is_some_and(lies)
            || entries.any(|entry| is_same(path, &entry.path()));
    }
    // Several files of one name may be one model.
    is_same(path, model) || lies(path) && path.extension() == model.extension()
}

fn is_same(a: &Path, b: &Path) -> bool {
    whole(a).is_some_and(|a| whole(b) == Some(a))
}

/// A path from the root, through all links. The directory of a name alone is the one that we are in.
fn whole(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(if path.as_os_str().is_empty() { Path::new(".") } else { path }).ok()
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command, value_parser};

    use super::*;

    #[test]
    fn results_are_not_written_over_what_they_are_of() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("model")).unwrap();
        for name in ["model/config.json", "a.gguf", "a-2.gguf", "text", "old"] {
            fs::write(at(name), "x").unwrap();
        }
        let text = at("text");
        let fits = |out: &Path, model: &Path| {
            let arg = Arg::new("out").long("out").value_parser(value_parser!(PathBuf));
            let matches = Command::new("it").arg(arg);
            let matches = matches.get_matches_from([Path::new("it"), Path::new("--out"), out]);
            file(&matches, "out", (Some(model), &[Some(&text), None])).is_ok()
        };
        let (dir_model, file_model) = (at("model"), at("a.gguf"));
        for out in ["new", "old", "model/new"] {
            assert!(fits(&at(out), &dir_model) && fits(&at(out), &file_model), "{out}");
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(at("model/config.json"), at("link")).unwrap();
        fs::create_dir(at("model/parts")).unwrap();
        fs::write(at("model/parts/0"), "x").unwrap();
        for out in ["text", "model/config.json", "model/parts/0", "model/../text"] {
            assert!(!fits(&at(out), &dir_model), "{out}");
        }
        for out in ["a.gguf", "a-2.gguf", "text"] {
            assert!(!fits(&at(out), &file_model), "{out}");
        }
        assert!(!fits(Path::new("-"), &dir_model));
        #[cfg(unix)]
        {
            assert!(!fits(&at("link"), &dir_model), "it would be written where the link leads");
            // As the hub's cache has them.
            std::os::unix::fs::symlink(&text, at("model/blob")).unwrap();
            assert!(is_of(&at("model/blob"), &dir_model) && is_of(&text, &dir_model));
        }
    }
}
