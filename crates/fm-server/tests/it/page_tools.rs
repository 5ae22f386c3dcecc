//! Tools on the page: what the model may call, what it calls, and what somebody says that came of it.

use fm_engine::{
    generate::Event,
    schedule::{Job, Update},
};
use fm_text::{CallPart, Channel};
use serde_json::{Value, json};

use crate::{
    browser::{Browser, ENTER, Jobs, SHIFT, browser},
    harness::start,
    page_in_browser::{CONTRAST, IDLE, end, page_of_jobs, say, take},
};

const WEATHER: &str = r#"{"condition": "sunny", "temperature": 21}"#;

/// Writes tools into the settings, and tells what is said of them.
fn define(browser: &Browser, text: &str) -> String {
    let text = Value::from(text);
    browser.run(&format!(
        "const area = document.querySelector('[data-name=tools]'); area.value = {text}; area.dispatchEvent(new Event('input'));"
    ));
    let note = browser.run("return document.querySelector('#tools-note').textContent");
    note.as_str().unwrap().to_owned()
}

fn click(browser: &Browser, label: &str) {
    browser.run(&format!(
        "[...document.querySelectorAll('button')].find(b => b.checkVisibility() && b.textContent === '{label}').click()"
    ));
}

/// Keeps what is sent to the model in `window.asked`.
const LISTEN: &str = "window.asked = []; const send = window.fetch; \
    window.fetch = (path, how) => { if (how?.body) window.asked.push(JSON.parse(how.body)); return send(path, how); };";

fn latest_asked(browser: &Browser) -> Value {
    browser.run("return window.asked.at(-1)")
}

/// The model writes a piece of the call in this place.
fn call(job: &mut Job, at: usize, part: CallPart<'_>) {
    assert!((job.listener)(Update::Event(Event::Call(at, part))).is_continue());
}

#[test]
fn the_demonstration_model_calls_a_tool_and_takes_what_it_gives() {
    let server = start(1);
    let Some(browser) = browser() else { return };
    browser.open(server.at);
    browser.until("document.querySelector('#model').textContent === 'demo'");
    browser.run("document.querySelector('#settings').showModal()");
    click(&browser, "Insert an example");
    assert_eq!(browser.text("#tools-note"), "The model may call get_weather.");
    browser.run(
        "document.querySelector('#settings').close(); document.querySelector('#prompt').focus()",
    );
    browser.run("const t = document.querySelector('[data-name=temperature]'); t.value = '0'; t.dispatchEvent(new Event('input'))");
    browser.press(&format!("What is the weather in Paris?{ENTER}"));
    // The result is asked for where the keyboard is.
    browser.until("document.activeElement.ariaLabel === 'Result of get_weather'");
    let called = browser.text(".call");
    assert!(called.contains("get_weather") && called.contains("\"city\": \"Paris\""), "{called}");
    assert!(browser.text(".answer .facts").contains("waits for a tool"));
    browser.press(&format!("{WEATHER}{ENTER}"));
    browser
        .until(&format!("{IDLE} && document.querySelectorAll('.answer').length === 2 && document.activeElement.id === 'prompt'"));
    let answer =
        browser.run("return [...document.querySelectorAll('.answer .markdown')].at(-1).innerText");
    assert!(answer.as_str().unwrap().contains("sunny in Paris"), "{answer}");
    // It is folded now, and holds what came of it; the tool and the result outlive the page.
    browser.open(server.at);
    browser.until("document.querySelector('#chat-list .title')");
    browser.click("#chat-list .title");
    assert_eq!(browser.run("return document.querySelector('.call').open"), false);
    let kept = browser.run("return document.querySelector('.came').textContent");
    assert!(kept.as_str().unwrap().contains(WEATHER), "{kept}");
    assert_eq!(
        browser.run("return document.querySelector('#tools-note').textContent"),
        "The model may call get_weather."
    );
}

#[test]
fn calls_are_shown_as_they_come_and_each_has_its_result() {
    let Some((_server, browser, jobs)) = page_of_jobs() else { return };
    browser.run(LISTEN);
    define(&browser, r#"[{"type": "function", "function": {"name": "look"}}]"#);
    browser.press(&format!("question{ENTER}"));
    let mut job = take(&jobs);
    say(&mut job, Channel::Thinking, "Hm.");
    call(&mut job, 0, CallPart::Begin("look"));
    call(&mut job, 0, CallPart::Arguments("{\"at\": \"the <b>sk"));
    browser.until("document.querySelector('.call .brief')?.textContent === '{\"at\": \"the <b>sk'");
    assert_eq!(browser.text(".call summary code"), "look");
    assert_eq!(browser.run("return document.querySelector('.call').open"), false, "folded");
    assert_eq!(browser.run("return document.querySelector('.came').innerText.trim()"), "");
    assert_eq!(browser.text(".answer .facts"), "", "it is not waited for yet");
    browser.run("document.querySelector('.call').open = true");
    browser.run("getSelection().selectAllChildren(document.querySelector('.call code'))");
    call(&mut job, 0, CallPart::Arguments("y\"}"));
    call(&mut job, 0, CallPart::End(None));
    for part in [CallPart::Begin("look"), CallPart::Arguments("{}"), CallPart::End(None)] {
        call(&mut job, 1, part);
    }
    // What turns out to be no call is text.
    call(&mut job, 2, CallPart::Begin("<img src=x onerror=window.hacked=1>"));
    call(&mut job, 2, CallPart::Arguments("{\"a"));
    browser.until("document.querySelectorAll('.call').length === 3");
    assert_eq!(browser.run("return document.querySelector('.call').open"), true, "as it was left");
    assert_eq!(browser.run("return getSelection().toString()"), "look", "marked still");
    let lines = browser.run("return document.querySelector('.call pre').textContent");
    assert_eq!(lines, "{\n  \"at\": \"the <b>sky\"\n}");
    let fields = "return document.querySelectorAll('.calls textarea:not([hidden] *)').length";
    assert_eq!(browser.run(fields), 0, "it writes still");
    call(&mut job, 2, CallPart::Broken);
    say(&mut job, Channel::Answer, "<tool_call>");
    end(&mut job);
    browser.until(IDLE);
    assert_eq!(browser.run("return document.querySelectorAll('#messages :is(img, b)').length"), 0);
    assert_eq!(browser.run(fields), 2);
    assert!(browser.text(".call:nth-of-type(3) summary").contains("<img src=x"));
    let note = "return [...document.querySelectorAll('.came')].map(e => e.innerText.includes('It was cut'))";
    browser.run("document.querySelectorAll('.call').forEach(d => d.open = true)");
    assert_eq!(browser.run(note), json!([false, false, true]), "the one that has no result");
    assert_eq!(browser.text(".calls footer"), "Send the results");

    let mut job = both_are_answered(&browser, &jobs);
    say(&mut job, Channel::Answer, "Blue.");
    end(&mut job);
    browser.until(IDLE);
    the_other_result_stays(&browser, &jobs);
}

/// What two calls gave is sent with them, and nothing for what was no call.
fn both_are_answered(browser: &Browser, jobs: &Jobs) -> Job {
    // Enter goes to the next one, and then sends.
    browser.until("document.activeElement.ariaLabel === 'Result of look'");
    browser.press(&format!("blue{ENTER}"));
    browser.press(&format!("nothing{ENTER}"));
    let job = take(jobs);
    let asked = latest_asked(browser);
    assert_eq!(asked["tools"][0]["function"]["name"], "look");
    let [question, called, blue, nothing] = asked["messages"].as_array().unwrap().as_slice() else {
        panic!("{asked}")
    };
    assert_eq!(question["content"], "question");
    let calls = called["tool_calls"].as_array().unwrap();
    assert_eq!((&called["content"], calls.len()), (&json!("<tool_call>"), 2));
    assert_eq!(called["reasoning_content"], "Hm.");
    assert_eq!(
        calls[0]["function"],
        json!({"name": "look", "arguments": "{\"at\": \"the <b>sky\"}"})
    );
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    for (result, call, text) in [(blue, &calls[0], "blue"), (nothing, &calls[1], "nothing")] {
        assert_eq!(*result, json!({"role": "tool", "tool_call_id": call["id"], "content": text}));
    }
    job
}

/// Who changes one result of two has the other kept; a line break is part of it.
fn the_other_result_stays(browser: &Browser, jobs: &Jobs) {
    browser.run("document.querySelector('.call').open = true");
    click(browser, "Change the result");
    assert_eq!(browser.text(".calls footer"), "Send the result");
    assert_eq!(browser.run("return document.activeElement.value"), "blue", "as it was");
    let shown = browser.text(".came");
    assert!(!shown.contains("Change the result"), "it is there once: {shown}");
    browser.press(&format!("{SHIFT}{ENTER}{SHIFT}and grey{ENTER}"));
    let mut job = take(jobs);
    let asked = latest_asked(browser);
    let results = [2, 3].map(|at| asked["messages"][at]["content"].clone());
    assert_eq!(results, ["blue\nand grey", "nothing"]);
    end(&mut job);
    browser.until(IDLE);
    // As it stays when something else is asked; what was no call has no result then either.
    browser.run("document.querySelector('#prompt').focus()");
    browser.press(&format!("something else{ENTER}"));
    let _job = take(jobs);
    let asked = latest_asked(browser);
    assert_eq!([2, 3].map(|at| asked["messages"][at]["content"].clone()), results);
    let shown = browser.run("return document.querySelector('.call:nth-of-type(3)').textContent");
    assert!(!shown.as_str().unwrap().contains("No result was given."), "{shown}");
}

#[test]
fn a_result_can_be_changed_and_left_out() {
    let Some((_server, browser, jobs)) = page_of_jobs() else { return };
    browser.run(LISTEN);
    let look = [CallPart::Begin("look"), CallPart::Arguments("{}"), CallPart::End(None)];
    browser.press(&format!("question{ENTER}"));
    let mut job = take(&jobs);
    look.iter().for_each(|part| call(&mut job, 0, *part));
    end(&mut job);
    browser.until("document.activeElement.ariaLabel === 'Result of look'");
    browser.press(&format!("blue{ENTER}"));
    let mut job = take(&jobs);
    say(&mut job, Channel::Answer, "Blue.");
    end(&mut job);
    browser.until(IDLE);

    // Another result is another conversation from there on; another answer keeps it.
    browser.run("document.querySelector('.call').open = true");
    click(&browser, "Change the result");
    browser.run("document.activeElement.value = ''");
    browser.press(&format!("grey{ENTER}"));
    let mut job = take(&jobs);
    assert_eq!(latest_asked(&browser)["messages"][2]["content"], "grey");
    end(&mut job);
    browser.until(IDLE);
    browser.run("[...document.querySelectorAll('.answer button')].filter(b => b.textContent === 'Again').at(-1).click()");
    let mut job = take(&jobs);
    assert_eq!(latest_asked(&browser)["messages"].as_array().unwrap().len(), 3);
    // Who asks something else leaves a call without a result, and sees what the model is told of it.
    look.iter().for_each(|part| call(&mut job, 0, *part));
    end(&mut job);
    browser.until(IDLE);
    browser.run("document.querySelector('#prompt').focus()");
    browser.press(&format!("something else{ENTER}"));
    let _job = take(&jobs);
    let asked = latest_asked(&browser);
    let told = asked["messages"].as_array().unwrap().iter().rev().nth(1).unwrap();
    assert_eq!((&told["role"], &told["content"]), (&json!("tool"), &json!("No result was given.")));
    let shown = browser.run("return [...document.querySelectorAll('.came')].at(-1).textContent");
    assert!(shown.as_str().unwrap().contains("No result was given."), "{shown}");
}

#[test]
fn an_answer_that_was_stopped_before_it_came_is_not_told() {
    let Some((_server, browser, jobs)) = page_of_jobs() else { return };
    browser.run(LISTEN);
    browser.press(&format!("question{ENTER}"));
    let _job = take(&jobs);
    click(&browser, "Stop");
    browser.until(IDLE);
    browser.run("document.querySelector('#prompt').focus()");
    browser.press(&format!("another{ENTER}"));
    let _job = take(&jobs);
    let asked = latest_asked(&browser);
    let told = [("user", "question"), ("user", "another")]
        .map(|(role, content)| json!({"role": role, "content": content}));
    assert_eq!(asked["messages"], json!(told));
}

#[test]
fn tools_that_are_none_are_told_and_calls_can_be_read_everywhere() {
    let Some((_server, browser, jobs)) = page_of_jobs() else { return };
    let tool = json!({"type": "function", "function": {"name": "a"}});
    let twice = json!([tool, tool]).to_string();
    for (text, said) in [
        ("[", "The tools are no JSON: "),
        ("{}", "The tools are no list: "),
        (r#"[{"type": "function"}]"#, "Tool 1 is not of the shape "),
        (r#"[{"type": "function", "function": {"name": "a b"}}]"#, "Tool 1 has no \"name\" "),
        (
            r#"[{"type": "function", "function": {"name": "a", "parameters": []}}]"#,
            "Tool 1 has \"parameters\" ",
        ),
        (
            r#"[{"type": "function", "function": {"name": "a", "description": 1}}]"#,
            "Tool 1 has a \"description\" ",
        ),
        (&twice, "Two tools are called a."),
    ] {
        let told = define(&browser, text);
        assert!(told.starts_with(said), "{told}");
        assert_eq!(
            browser.run("return document.querySelector('[data-name=tools]').ariaInvalid"),
            "true"
        );
    }
    let named = |name: &str| {
        let tool = json!([{"type": "function", "function": {"name": name}}]);
        define(&browser, &tool.to_string())
    };
    assert_eq!(named(&"a".repeat(128)), format!("The model may call {}.", "a".repeat(128)));
    assert!(named(&"a".repeat(129)).starts_with("Tool 1 has no \"name\" "));
    define(&browser, &twice);
    // No answer comes without the tools that somebody meant.
    browser.press(&format!("question{ENTER}"));
    browser.until("document.querySelector('.trouble:not([hidden])')?.textContent.startsWith('Two tools are called a.')");
    assert!(jobs.lock().unwrap().is_empty());
    define(&browser, " ");
    browser.press(&format!("question{ENTER}"));
    let mut job = take(&jobs);
    let long = format!("{{\"a\": \"{}\"}}", "long".repeat(50));
    for at in 0..2 {
        for part in [CallPart::Begin("look"), CallPart::Arguments(&long), CallPart::End(None)] {
            call(&mut job, at, part);
        }
    }
    end(&mut job);
    browser.until("document.querySelectorAll('.came label:not([hidden])').length === 2");
    define(&browser, "[");
    browser.run("document.querySelector('#settings').showModal()");
    let wide = "return [...document.querySelectorAll('#messages *, #settings *')].filter(e => e.checkVisibility() \
        && !e.closest('.call pre, .brief, .call summary') && e.getBoundingClientRect().right > 361).map(e => e.outerHTML.slice(0, 80))";
    for (state, script) in
        [("asked for", ""), ("given", "document.querySelector('.calls').requestSubmit()")]
    {
        browser.run(script);
        browser.run("document.querySelectorAll('details').forEach(d => d.open = true)");
        for theme in ["light", "dark"] {
            browser.run(&format!("document.documentElement.dataset.theme = '{theme}'"));
            assert_eq!(browser.run(CONTRAST)["found"], json!([]), "{state}, {theme}");
        }
        browser.resize(360, 640);
        assert_eq!(browser.run(wide), json!([]), "{state}");
        browser.resize(1280, 800);
    }
}
