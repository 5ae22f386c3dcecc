//! Which files of a repository a model is made of.

use std::{collections::BTreeMap, path::Path};

use fm_format::{container, source::gguf::part_name};
use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::{
    error::{HubError, Variant},
    repository::{RemoteFile, Repository},
};

/// The same weights for other programs, and what belongs to other models. Never taken.
const NEVER: &[&str] = &[
    "*.bin",
    "*.pth",
    "*.pt",
    "*.ckpt",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.onnx_data",
    "consolidated*.safetensors",
    "mmproj*",
    "*/mmproj*",
];
/// What stands beside weights in safetensors files, in the repository's root.
const BESIDE: &[&str] = &["*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"];
/// Chat templates beside the usual one.
const TEMPLATES: &str = "additional_chat_templates/*.jinja";
/// Files of a container beside its trunk, its manifest and [`container::COPIED`].
const EXPERTS: &str = "experts/layer-*.bin";

/// The user's choice. Empty, it is what this program needs.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Patterns of files to take instead of what would be taken; `*` stands for `/`, too.
    pub include: Vec<String>,
    /// Patterns of files to leave.
    pub exclude: Vec<String>,
    /// A file or directory: of several models, the one in it.
    pub file: Option<String>,
}

impl Selection {
    /// Chooses the files of a model, small ones first.
    ///
    /// # Errors
    /// If there is no model, none matches, or there are several and none was chosen.
    pub fn choose(&self, repository: &Repository) -> Result<Vec<RemoteFile>, HubError> {
        let id = || repository.id.clone();
        let (include, exclude) = (globs(&self.include)?, globs(&self.exclude)?);
        let never = globs(NEVER)?;
        let container = is_container(repository);
        let experts = globs(&[EXPERTS])?;
        let possible = repository.files.iter().filter(|RemoteFile { name, .. }| {
            let its_own = container && (experts.is_match(name) || is_copied(name));
            let wanted = its_own || !never.is_match(name);
            let inside = self.file.as_deref().is_none_or(|at| is_in(name, at));
            wanted && inside && !exclude.is_match(name)
        });
        let possible: Vec<&RemoteFile> = possible.collect();
        let mut chosen = if self.include.is_empty() {
            needed(repository, &possible)?
        } else {
            let included = possible.iter().filter(|file| include.is_match(&file.name)).copied();
            with_parts(included.collect(), &possible)
        };
        if chosen.is_empty() {
            let patterns: Vec<String> =
                self.include.iter().chain(&self.file).chain(&self.exclude).cloned().collect();
            return Err(if patterns.is_empty() {
                HubError::NoModel { id: id() }
            } else {
                HubError::NoMatch { id: id(), patterns }
            });
        }
        chosen.sort_by_key(|file| (is_weights(&file.name), file.name.clone()));
        Ok(chosen.into_iter().cloned().collect())
    }
}

/// Whether a file holds weights, by its name.
fn is_weights(name: &str) -> bool {
    let experts = Path::new(name).extension().is_some_and(|extension| extension == "bin");
    !is_copied(name) && (is_safetensors(name) || is_gguf(name) || experts)
}

fn is_container(repository: &Repository) -> bool {
    repository.files.iter().any(|file| file.name == container::MANIFEST)
}

/// Whether a container has a small file of this name. Its manifest lists what it cannot do without,
/// and that may look like weights: the metadata of a GGUF file, a tokenizer of packed files.
fn is_copied(name: &str) -> bool {
    container::COPIED.contains(&name)
}

pub(crate) fn is_safetensors(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "safetensors")
}

pub(crate) fn is_gguf(name: &str) -> bool {
    fm_format::source::gguf::is_gguf(Path::new(name))
}

/// Whether a path is another one, or below it.
pub(crate) fn is_in(name: &str, at: &str) -> bool {
    name.strip_prefix(at).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        || part_name(name).zip(part_name(at)).is_some_and(|(a, b)| (a.0, a.2) == (b.0, b.2))
}

fn globs(patterns: &[impl AsRef<str>]) -> Result<GlobSet, HubError> {
    let wrong = |pattern: &str, source| HubError::Pattern { pattern: pattern.to_owned(), source };
    let mut set = GlobSetBuilder::new();
    for pattern in patterns.iter().map(AsRef::as_ref) {
        set.add(Glob::new(pattern).map_err(|source| wrong(pattern, source))?);
    }
    set.build().map_err(|source| wrong("", source))
}

/// What this program needs: safetensors and what stands beside them, or else the one GGUF model.
fn needed<'a>(
    repository: &Repository,
    possible: &[&'a RemoteFile],
) -> Result<Vec<&'a RemoteFile>, HubError> {
    let in_root = |name: &str| !name.contains('/');
    let root = possible.iter().copied().filter(|file| in_root(&file.name));
    if root.clone().any(|file| is_safetensors(&file.name)) {
        let (beside, below) = (globs(BESIDE)?, globs(&[EXPERTS, TEMPLATES])?);
        let container = is_container(repository);
        let wanted = |name: &str| {
            is_safetensors(name) || beside.is_match(name) || (container && is_copied(name))
        };
        let mut files: Vec<_> = root.filter(|file| wanted(&file.name)).collect();
        files.extend(possible.iter().filter(|file| below.is_match(&file.name)));
        return Ok(files);
    }
    let mut models = gguf_models(possible.iter().copied(), |file| &file.name);
    match models.len() {
        0 | 1 => Ok(models.pop_first().map_or_else(Vec::new, |(_, files)| files)),
        _ => {
            let variants = models.into_values().map(|files| Variant {
                file: files[0].name.clone(),
                bytes: files.iter().map(|file| file.bytes).sum(),
            });
            let (id, variants) = (repository.id.clone(), variants.collect());
            Err(HubError::Several { id, variants })
        }
    }
}

/// What the files of one split model have in common.
fn gguf_model(name: &str) -> &str {
    part_name(name).map_or(name, |(base, _, _)| base)
}

/// The GGUF files among some, by the model that they are parts of, in order.
pub(crate) fn gguf_models<'a, F>(
    files: impl Iterator<Item = &'a F>,
    name: impl Fn(&'a F) -> &'a str,
) -> BTreeMap<&'a str, Vec<&'a F>> {
    let mut models = BTreeMap::<&str, Vec<&F>>::new();
    for file in files.filter(|file| is_gguf(name(file))) {
        models.entry(gguf_model(name(file))).or_default().push(file);
    }
    models.values_mut().for_each(|files| files.sort_by_key(|file| name(file)));
    models
}

/// Adds the other parts of split models.
fn with_parts<'a>(
    mut chosen: Vec<&'a RemoteFile>,
    possible: &[&'a RemoteFile],
) -> Vec<&'a RemoteFile> {
    let models = gguf_models(possible.iter().copied(), |file| &file.name);
    for files in models.into_values() {
        if files.iter().any(|file| chosen.contains(file)) {
            chosen.retain(|file| !files.contains(file));
            chosen.extend(files);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{checksum::Checksum, name::RepoId};

    fn repository(names: &[&str]) -> Repository {
        let checksum = Checksum::parse(&"0".repeat(40)).unwrap();
        let file = |name: &&str| RemoteFile {
            name: (*name).to_owned(),
            bytes: name.len() as u64,
            checksum: checksum.clone(),
        };
        let (id, revision) = (RepoId::new("a", "b").unwrap(), "main".to_owned());
        let files = names.iter().map(file).collect();
        Repository { id, revision, commit: "0".repeat(40), files }
    }

    fn chosen(names: &[&str], selection: &Selection) -> Vec<String> {
        let files = selection.choose(&repository(names)).unwrap();
        files.into_iter().map(|file| file.name).collect()
    }

    #[test]
    fn safetensors_come_with_what_stands_beside_them_and_no_duplicates() {
        let names = [
            "model-00002-of-00002.safetensors",
            "model-00001-of-00002.safetensors",
            "config.json",
            "tokenizer.json",
            "chat_template.jinja",
            "additional_chat_templates/tool_use.jinja",
            "additional_chat_templates/README.md",
            "other/tool_use.jinja",
            "merges.txt",
            "README.md",
            "pytorch_model.bin",
            "consolidated.safetensors",
            "original/model.safetensors",
            "onnx/model.onnx",
            "metal/model.bin",
            "mmproj.gguf",
            "x-Q4_0.gguf",
            ".gitattributes",
        ];
        let expected = [
            "additional_chat_templates/tool_use.jinja",
            "chat_template.jinja",
            "config.json",
            "merges.txt",
            "tokenizer.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(chosen(&names, &Selection::default()), expected);
    }

    #[test]
    fn a_container_keeps_its_experts() {
        let names = ["manifest.json", "trunk.safetensors", "experts/layer-000.bin", "pytorch.bin"];
        let expected = ["manifest.json", "experts/layer-000.bin", "trunk.safetensors"];
        assert_eq!(chosen(&names, &Selection::default()), expected);
    }

    #[test]
    fn a_container_keeps_every_small_file_it_can_have() {
        let small = container::COPIED.iter().copied().chain([container::MANIFEST]);
        let mut expected: Vec<&str> = small.collect();
        expected.sort_unstable();
        expected.extend(["experts/layer-000.bin", container::TRUNK]);
        let others = ["README.md", "pytorch.bin", "x-Q4_0.gguf", "other/tokenizer.bin"];
        let names = [expected.as_slice(), &others].concat();
        assert_eq!(chosen(&names, &Selection::default()), expected);
        let published = ["model.safetensors", "tokenizer.bin", "metadata.gguf"];
        assert_eq!(chosen(&published, &Selection::default()), published[..1], "no container");
    }

    const QUANTISATIONS: [&str; 6] = [
        "Q4_K_M/x-Q4_K_M-00001-of-00002.gguf",
        "Q4_K_M/x-Q4_K_M-00002-of-00002.gguf",
        "x-Q8_0.gguf",
        "mmproj-x-F16.gguf",
        "x-IQ1_S.gguf",
        "config.json",
    ];

    #[test]
    fn one_of_several_quantisations_has_to_be_chosen() {
        let error = Selection::default().choose(&repository(&QUANTISATIONS)).unwrap_err();
        let HubError::Several { variants, .. } = error else { panic!("{error}") };
        let files: Vec<&str> = variants.iter().map(|variant| variant.file.as_str()).collect();
        assert_eq!(files, [QUANTISATIONS[0], QUANTISATIONS[4], QUANTISATIONS[2]]);
        assert_eq!(variants[0].bytes, 2 * QUANTISATIONS[0].len() as u64);
    }

    #[test]
    fn a_pattern_a_file_or_a_directory_chooses_and_parts_stay_together() {
        let by =
            |include: &str| Selection { include: vec![include.to_owned()], ..Selection::default() };
        let at = |file: &str| Selection { file: Some(file.to_owned()), ..Selection::default() };
        assert_eq!(chosen(&QUANTISATIONS, &by("*00002-of*")), QUANTISATIONS[..2]);
        assert_eq!(chosen(&QUANTISATIONS, &at("Q4_K_M")), QUANTISATIONS[..2]);
        assert_eq!(chosen(&QUANTISATIONS, &at(QUANTISATIONS[1])), QUANTISATIONS[..2]);
        assert_eq!(chosen(&QUANTISATIONS, &at("x-Q8_0.gguf")), ["x-Q8_0.gguf"]);
        assert_eq!(chosen(&QUANTISATIONS, &by("*Q8*")), ["x-Q8_0.gguf"]);
        let exclude = vec!["*Q4_K*".to_owned(), "*Q8*".to_owned()];
        let rest = Selection { exclude, ..Selection::default() };
        assert_eq!(chosen(&QUANTISATIONS, &rest), ["x-IQ1_S.gguf"]);
        let none = by("mmproj*").choose(&repository(&QUANTISATIONS)).unwrap_err();
        assert!(matches!(none, HubError::NoMatch { .. }), "{none}");
        let wrong = by("[").choose(&repository(&QUANTISATIONS)).unwrap_err();
        assert!(matches!(wrong, HubError::Pattern { .. }), "{wrong}");
    }

    #[test]
    fn a_repository_without_weights_has_no_model() {
        let error = Selection::default().choose(&repository(&["config.json"])).unwrap_err();
        assert!(matches!(error, HubError::NoModel { .. }), "{error}");
    }
}
