//! What a tokenizer puts around a text that no chat template made.
//!
//! `tokenizer.json` says it with its post-processor. `transformers` replaces that one as soon as
//! `tokenizer_config.json` mentions `add_bos_token` or `add_eos_token`, and so do we.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The tokens before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Frame {
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
}

impl Frame {
    /// The frame of a post-processor; nothing if it is not one that is known.
    pub(super) fn of(post_processor: &Value) -> Option<Frame> {
        match post_processor["type"].as_str() {
            None => post_processor.is_null().then(Frame::default),
            Some("ByteLevel") => Some(Frame::default()),
            Some("BertProcessing" | "RobertaProcessing") => {
                let id = |key: &str| post_processor[key][1].as_u64()?.try_into().ok();
                Some(Frame { before: vec![id("cls")?], after: vec![id("sep")?] })
            }
            Some("TemplateProcessing") => Frame::of_template(post_processor),
            Some("Sequence") => {
                let mut frame = Frame::default();
                for step in post_processor["processors"].as_array()? {
                    let Frame { before, after } = Frame::of(step)?;
                    frame.before.splice(..0, before);
                    frame.after.extend(after);
                }
                Some(frame)
            }
            Some(_) => None,
        }
    }

    fn of_template(template: &Value) -> Option<Frame> {
        let mut frame = Frame::default();
        let mut side = &mut frame.before;
        for piece in template["single"].as_array()? {
            if piece.get("Sequence").is_some() {
                side = &mut frame.after;
                continue;
            }
            let name = piece["SpecialToken"]["id"].as_str()?;
            for id in template["special_tokens"][name]["ids"].as_array()? {
                side.push(id.as_u64()?.try_into().ok()?);
            }
        }
        Some(frame)
    }

    /// The frame that `tokenizer_config.json` asks for, if it asks for one. `find` knows the ids
    /// of tokens.
    pub(super) fn configured(
        config: &Value,
        find: impl Fn(&str) -> Option<u32>,
    ) -> Result<Option<Frame>, &'static str> {
        let wanted = |key: &str| config[key].as_bool();
        let (bos, eos) = (wanted("add_bos_token"), wanted("add_eos_token"));
        if bos.is_none() && eos.is_none() {
            return Ok(None);
        }
        let token = |wanted: Option<bool>, key: &str| {
            let text = config[key].as_str().or_else(|| config[key]["content"].as_str());
            match text.filter(|_| wanted == Some(true)) {
                Some(text) => find(text).map(|id| vec![id]),
                None => Some(Vec::new()),
            }
        };
        Ok(Some(Frame {
            before: token(bos, "bos_token").ok_or("a bos_token that is not in its vocabulary")?,
            after: token(eos, "eos_token").ok_or("an eos_token that is not in its vocabulary")?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(single: &Value) -> Value {
        json!({"type": "TemplateProcessing", "single": single, "special_tokens": {
            "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
            "</s>": {"id": "</s>", "ids": [2, 3], "tokens": ["<", "/s>"]}}})
    }

    #[test]
    fn reads_every_kind_of_post_processor() {
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let token = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let around = template(&json!([token("<s>"), text, token("</s>")]));
        let frame = |before: &[u32], after: &[u32]| {
            Some(Frame { before: before.to_vec(), after: after.to_vec() })
        };
        assert_eq!(Frame::of(&around), frame(&[1], &[2, 3]));
        assert_eq!(Frame::of(&Value::Null), frame(&[], &[]));
        let bert = json!({"type": "BertProcessing", "cls": ["[CLS]", 7], "sep": ["[SEP]", 8]});
        let both = json!({"type": "Sequence", "processors": [around, bert, {"type": "ByteLevel"}]});
        assert_eq!(Frame::of(&both), frame(&[7, 1], &[2, 3, 8]));
        assert_eq!(Frame::of(&template(&json!([token("<x>"), text]))), None);
        assert_eq!(Frame::of(&json!({"type": "Other"})), None);
    }

    #[test]
    fn the_configuration_overrules_the_post_processor() {
        let find = |text: &str| (text == "<s>").then_some(1);
        let frame = |config: Value| Frame::configured(&config, find);
        assert_eq!(frame(json!({"bos_token": "<s>"})), Ok(None));
        let off = frame(json!({"bos_token": "<s>", "add_bos_token": false}));
        assert_eq!(off, Ok(Some(Frame::default())));
        let on = frame(json!({"bos_token": {"content": "<s>"}, "add_bos_token": true}));
        assert_eq!(on, Ok(Some(Frame { before: vec![1], after: vec![] })));
        let none = frame(json!({"bos_token": null, "add_bos_token": true}));
        assert_eq!(none, Ok(Some(Frame::default())));
        assert!(frame(json!({"eos_token": "</s>", "add_eos_token": true})).is_err());
    }
}
