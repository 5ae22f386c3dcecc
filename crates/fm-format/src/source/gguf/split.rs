//! Models of one or several GGUF files.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use super::{ALIGNMENT_DEFAULT, GgufError, MAGIC, Metadata, read_part};
use crate::{
    error::FormatError,
    record::FileIndex,
    source::{Checkpoint, Tensor, is_hidden},
};

/// What stands before, the part and the number of parts in a name like `MODEL-00002-of-00005.gguf`.
///
/// `None` where there can be no such part, as with `00003-of-00002`: the file then stands for itself,
/// and what is wrong with it is told by its metadata or by the tensors that it lacks.
pub fn part_name(name: &str) -> Option<(&str, u32, u32)> {
    let stem = name.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (base, part) = rest.rsplit_once('-')?;
    let number = |text: &str| {
        let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((base, part, count))
}

/// Whether a path looks like a GGUF file.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Whether a file begins like a GGUF file, whatever it is called.
pub(in crate::source) fn has_magic(path: &Path) -> bool {
    let mut found = [0; MAGIC.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut found)).is_ok() && found == MAGIC
}

/// The one model among the GGUF files of a directory, if there is one: its first file.
///
/// # Errors
/// If the directory cannot be read, or has several models.
pub(in crate::source) fn find(dir: &Path) -> Result<Option<PathBuf>, FormatError> {
    let entries =
        fs::read_dir(dir).map_err(|source| FormatError::Io { path: dir.into(), source })?;
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| {
        let name = name(path).unwrap_or_default();
        // Vision towers lie beside the models they belong to.
        let model = is_gguf(path) && !is_hidden(path) && !name.starts_with("mmproj");
        model && part_name(&name).is_none_or(|(_, part, _)| part == 1)
    });
    found.sort();
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        several => {
            let files = several.iter().filter_map(name).collect();
            Err(FormatError::SeveralModels { dir: dir.into(), files })
        }
    }
}

/// All parts of the model that `path` is a part of, in order.
fn parts(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match part_name(&name) {
        Some((base, _, count)) => (1..=count)
            .map(|part| path.with_file_name(format!("{base}-{part:05}-of-{count:05}.gguf")))
            .collect(),
        None => vec![path.to_path_buf()],
    }
}

/// Reads the headers of all files of the model at `path`.
///
/// # Errors
/// If a part is missing, or a header is wrong or does not fit the others.
pub(in crate::source) fn open(path: &Path) -> Result<Checkpoint, FormatError> {
    let files = parts(path);
    let mut tensors = BTreeMap::<String, Tensor>::new();
    let mut metadata = None;
    // The first part may say it for all.
    let mut alignment = ALIGNMENT_DEFAULT;
    for (index, path) in files.iter().enumerate() {
        let header = read_part(path, FileIndex(index as u32), alignment)?;
        if index == 0 {
            alignment = header.alignment;
        }
        let fits = check_part(&header.metadata, index, files.len());
        fits.map_err(|source| FormatError::Gguf { path: path.clone(), source })?;
        for tensor in header.tensors {
            if let Some(first) = tensors.get(&tensor.name) {
                let first = files[first.extent.file.0 as usize].clone();
                let (second, tensor) = (path.clone(), tensor.name);
                return Err(FormatError::Duplicate { tensor, first, second });
            }
            tensors.insert(tensor.name.clone(), tensor);
        }
        metadata.get_or_insert(header.metadata);
    }
    let metadata = metadata.unwrap_or_default();
    let path = files[0].clone();
    check_total(&metadata, files.len(), tensors.len())
        .map_err(|source| FormatError::Gguf { path: path.clone(), source })?;
    let config = serde_json::Value::Null;
    let (metadata, container, records) = (Some(metadata), None, None);
    Ok(Checkpoint { path, config, metadata, files, tensors, container, records })
}

/// What a part says of its place, against the place its name gives it.
fn check_part(metadata: &Metadata, index: usize, files: usize) -> Result<(), GgufError> {
    let part = metadata.unsigned("split.no")?.unwrap_or(index as u64);
    let count = metadata.unsigned("split.count")?.unwrap_or(files as u64);
    // A file that was never split says 0 or nothing.
    if (part, count.max(1)) == (index as u64, files as u64) {
        return Ok(());
    }
    let tensors = metadata.unsigned("split.tensors.count")?.unwrap_or(0);
    Err(GgufError::Split { part, count, tensors })
}

fn check_total(metadata: &Metadata, files: usize, found: usize) -> Result<(), GgufError> {
    match metadata.unsigned("split.tensors.count")? {
        Some(tensors) if files > 1 && tensors != found as u64 => {
            let count = files as u64;
            Err(GgufError::Split { part: 0, count, tensors })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_names_all_the_others() {
        let names = parts(Path::new("dir/a-b-00002-of-00003.gguf"));
        let expected = ["dir/a-b-00001-of-00003.gguf", "dir/a-b-00002-of-00003.gguf"];
        assert_eq!(names[..2], expected.map(PathBuf::from));
        assert_eq!(names.len(), 3);
        for whole in ["a.gguf", "a-1-of-2.gguf", "a-00001-of-0000x.gguf", "a-00001-of-+0001.gguf"] {
            assert_eq!(parts(Path::new(whole)), [PathBuf::from(whole)]);
        }
    }

    #[test]
    fn a_part_that_cannot_be_is_a_file_of_its_own() {
        for name in ["a-00001-of-00000.gguf", "a-00000-of-00002.gguf", "a-00003-of-00002.gguf"] {
            assert_eq!(part_name(name), None, "{name}");
            let missing = Path::new("no-such-directory").join(name);
            let error = open(&missing).unwrap_err().to_string();
            assert!(error.contains(name), "{error} is about {name}");
        }
    }
}
