//! Prompts against `transformers`, from a folder of goldens that is not part of the repository.
//!
//! `FLASH_MOE_CHAT_GOLDENS` names the folder with `chat.json`: conversations, and what each
//! template made of them. `FLASH_MOE_CHAT_TEMPLATES` names the folder with the templates of other
//! people; without it only the goldens' own template is checked.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fm_text::{ChatTemplate, Message, RenderRequest, TextError};
use serde_json::Value;

/// 2026-11-20, when the goldens were made.
fn golden_day() -> SystemTime {
    UNIX_EPOCH + Duration::from_hours(498_648)
}

fn folder(variable: &str) -> Option<PathBuf> {
    let folder = env::var_os(variable).map(PathBuf::from);
    if folder.is_none() {
        #[allow(clippy::print_stderr)] // the only way to say that nothing was tested
        {
            eprintln!("skipped: {variable} is not set");
        }
    }
    folder
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn render(template: &ChatTemplate, case: &Value) -> Result<String, TextError> {
    let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
    template.render(&RenderRequest {
        tools: case["tools"].as_array().map_or(&[], Vec::as_slice),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(true),
        enable_thinking: case["enable_thinking"].as_bool(),
        now: golden_day(),
        ..RenderRequest::new(&messages)
    })
}

/// A folder with the template and the special tokens of the goldens' tokenizer.
fn template_folder(goldens: &Path, template: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(template, dir.path().join("chat_template.jinja")).unwrap();
    let config = goldens.join("tokenizer/tokenizer_config.json");
    fs::copy(config, dir.path().join("tokenizer_config.json")).unwrap();
    dir
}

/// Compares all cases of one template; returns how many there were.
fn check(goldens: &Path, template: &Path, rendered: &Value) -> usize {
    let cases = read_json(&goldens.join("chat.json"));
    let dir = template_folder(goldens, template);
    let opened = ChatTemplate::open(dir.path()).unwrap().unwrap();
    let mut wrong = Vec::new();
    let rendered = rendered.as_object().unwrap();
    for (name, expected) in rendered {
        let found = render(&opened, &cases["cases"][name]);
        let same = match (&found, expected.as_str()) {
            (Ok(found), Some(expected)) => found == expected,
            (found, expected) => found.is_err() && expected.is_none(),
        };
        if !same {
            wrong.push(format!("{name}:\nfound    {found:?}\nexpected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", template.display(), wrong.join("\n"));
    rendered.len()
}

#[test]
fn renders_the_goldens_own_template() {
    let Some(goldens) = folder("FLASH_MOE_CHAT_GOLDENS") else { return };
    let rendered = &read_json(&goldens.join("chat.json"))["rendered"]["own"];
    assert_eq!(check(&goldens, &goldens.join("tokenizer/chat_template.jinja"), rendered), 12);
}

#[test]
fn renders_published_templates() {
    let Some(goldens) = folder("FLASH_MOE_CHAT_GOLDENS") else { return };
    let Some(templates) = folder("FLASH_MOE_CHAT_TEMPLATES") else { return };
    let rendered = &read_json(&goldens.join("chat.json"))["rendered"];
    let files = [
        ("qwen3_5", "Qwen3.5-4B.jinja"),
        ("qwen3_coder", "Qwen3-Coder.jinja"),
        ("qwen3", "Qwen-Qwen3-0.6B.jinja"),
        ("glm47_flash", "GLM-4.7-Flash.jinja"),
        ("gpt_oss", "openai-gpt-oss-120b.jinja"),
        ("minimax_m2", "MiniMax-M2.jinja"),
        ("deepseek_v31", "deepseek-ai-DeepSeek-V3.1.jinja"),
    ];
    let checked = files.map(|(name, file)| check(&goldens, &templates.join(file), &rendered[name]));
    assert_eq!(checked.iter().sum::<usize>(), 7 * 12);
}
